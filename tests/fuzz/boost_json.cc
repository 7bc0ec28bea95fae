// SPDX-License-Identifier: Apache-2.0
// Boost.JSON, compiled with the fuzzer's instrumentation. In the system's library a fuzzer sees no branch, so nothing
// tells it that "{" is nearer to an object than "x", and no target whose input is JSON gets past the parser.
#include <boost/json/src.hpp>
