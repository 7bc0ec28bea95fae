// SPDX-License-Identifier: Apache-2.0
// What the machine does at best for the bytes that the transfer bench moves: memcpy, CRC32C, one plain TCP stream.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

namespace tandem::bench {

double now_seconds();
/// Processor time of this thread: on a busy machine the wall clock says nothing about work of one thread.
double thread_seconds();
/// The best of several rounds, in GB/s: others disturb, nothing helps.
double best_rate(int rounds, double bytes, double (*clock)(), const std::function<void()>& body);

double memcpy_rate(int rounds, std::span<const std::byte> from, std::span<std::byte> to, int threads);
/// In pieces of 4 KiB, one thread; `portable`: by tables.
double crc_rate(int rounds, std::span<const std::byte> data, bool portable);
/// One connection on the loopback, large blocking sends and receives, from `from` into `to`.
double plain_tcp_rate(int rounds, std::span<const std::byte> from, std::span<std::byte> to);
/// One stream of the iperf3 program for a second or so; nullopt if it is not installed.
std::optional<double> iperf3_rate();

}  // namespace tandem::bench
