// SPDX-License-Identifier: Apache-2.0
// Whether a sanitizer has taken malloc's place, which then keeps what is freed. g++ and clang say it each in their way.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TANDEM_SANITIZER_HAS_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TANDEM_SANITIZER_HAS_MALLOC 1
#endif
#endif
#ifndef TANDEM_SANITIZER_HAS_MALLOC
#define TANDEM_SANITIZER_HAS_MALLOC 0
#endif
