// SPDX-License-Identifier: Apache-2.0
// "Authorization: Bearer KEY", and texts that must not be guessed byte by byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "net/http_server.h"

namespace tandem::net {

/// Whether the request brings one of the keys, or there are none. All keys are compared, in a time that does not depend
/// on where they differ.
bool has_bearer(const HttpRequest& request, const std::vector<std::string>& keys);

/// Takes as long whatever `given` is, but for its length, which its sender knows.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace tandem::net
