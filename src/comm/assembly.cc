// SPDX-License-Identifier: Apache-2.0
#include "comm/assembly.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tandem::comm {
namespace {

std::int32_t end_rank(const ProcessInfo& process) { return process.first_rank + process.num_ranks; }

std::string ranks_text(std::int32_t first, std::int32_t end) {
  return end - first == 1 ? fmt::format("data-parallel rank {}", first)
                          : fmt::format("data-parallel ranks {} to {}", first, end - 1);
}

}  // namespace

/// nullopt: it has its seat.
std::optional<Refused> Assembly::place(LinkId link, const Hello& hello) {
  const ProcessInfo& process = hello.process;
  if (hello.total_ranks != options_.total_ranks)
    return Refused{true, fmt::format("--data-parallel-size is {} there and {} in the first process", hello.total_ranks,
                                     options_.total_ranks)};
  if (const Status same = compare_properties(options_.properties, hello.properties); !same.ok())
    return Refused{true, same.message()};
  if (end_rank(process) > options_.total_ranks)
    return Refused{true, fmt::format("it has {}, but --data-parallel-size is {}",
                                     ranks_text(process.first_rank, end_rank(process)), options_.total_ranks)};
  for (Seat& seat : seats_) {
    if (end_rank(seat.process) <= process.first_rank || end_rank(process) <= seat.process.first_rank) continue;
    const bool same_ranks =
        seat.process.first_rank == process.first_rank && seat.process.num_ranks == process.num_ranks;
    if (!same_ranks)
      return Refused{true, fmt::format("it has {}, which overlap with {}; check --data-parallel-start-rank and "
                                       "--data-parallel-size-local{}",
                                       ranks_text(process.first_rank, end_rank(process)), describe(seat.process),
                                       roster_known_ ? ", or restart all processes to lay them out anew" : "")};
    // A process that came back may be faster than the news that it was gone.
    if (seat.link)
      return Refused{false, fmt::format("{} is still connected; if there are two with these ranks, end one",
                                        describe(seat.process))};
    seat = Seat{process, link};
    return std::nullopt;
  }
  const auto after = std::find_if(seats_.begin(), seats_.end(),
                                  [&](const Seat& seat) { return seat.process.first_rank > process.first_rank; });
  seats_.insert(after, Seat{process, link});
  return std::nullopt;
}

Orders Assembly::join(LinkId link, const Hello& hello, TimePoint now) {
  Orders orders;
  if (auto refused = place(link, hello)) {
    orders.push_back({link, std::move(*refused)});
    return orders;
  }
  std::int32_t covered = 0;
  for (const Seat& seat : seats_) covered += seat.link ? seat.process.num_ranks : 0;
  if (covered == options_.total_ranks) {
    roster_known_ = true;
    tell_all(Roster{processes()}, orders);
  }
  told_waiting_.clear();  // the new one has heard nothing yet
  tell_waiting(orders);
  for (Order& order : tick(now)) orders.push_back(std::move(order));
  return orders;
}

bool Assembly::joined(LinkId link) const {
  return std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) { return seat.link == link; });
}

Orders Assembly::hear(LinkId link, const Message& message, TimePoint now) {
  Orders orders;
  Seat* seat = seat_of(link);
  if (seat == nullptr) return orders;
  if (std::holds_alternative<Ready>(message)) {
    seat->ready = true;
  } else if (const auto* linked = std::get_if<Linked>(&message)) {
    if (phase_ == Phase::kForming && linked->epoch == epoch_) {
      seat->linked = true;
      if (std::all_of(seats_.begin(), seats_.end(), [](const Seat& one) { return one.linked; })) set_up(orders);
    }
  } else if (const auto* suspect = std::get_if<Suspect>(&message)) {
    const bool current = phase_ != Phase::kApart && suspect->epoch == epoch_;
    if (current && suspect->process < std::ssize(seats_)) drop(suspect->process, suspect->why, now, orders);
  } else if (std::holds_alternative<Serving>(message)) {
    seat->serving = true;
  }
  tell_waiting(orders);
  for (Order& order : tick(now)) orders.push_back(std::move(order));
  return orders;
}

Orders Assembly::lose(LinkId link, const std::string& why, TimePoint now) {
  Orders orders;
  Seat* seat = seat_of(link);
  if (seat == nullptr) return orders;
  const auto index = static_cast<std::int32_t>(seat - seats_.data());
  *seat = Seat{seat->process, std::nullopt};
  if (phase_ != Phase::kApart) drop(index, why, now, orders);
  if (!roster_known_) seats_.erase(seats_.begin() + index);
  tell_waiting(orders);
  return orders;
}

Orders Assembly::tick(TimePoint now) {
  Orders orders;
  if (phase_ == Phase::kForming && now >= form_deadline_) {
    const auto late = std::find_if(seats_.begin(), seats_.end(), [](const Seat& seat) { return !seat.linked; });
    drop(static_cast<std::int32_t>(late - seats_.begin()),
         fmt::format("it did not link to all others within {} s", options_.form_timeout.count() / 1000), now, orders);
  }
  const bool all_ready =
      std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.link && seat.ready; });
  if (phase_ != Phase::kApart || !roster_known_ || !all_ready || now < form_not_before_) return orders;
  epoch_ = next_epoch_++;
  phase_ = Phase::kForming;
  form_deadline_ = now + options_.form_timeout;
  for (Seat& seat : seats_) seat.linked = !options_.links;
  tell_all(Form{epoch_, processes()}, orders);
  if (!options_.links) set_up(orders);
  return orders;
}

std::string Assembly::waiting_for() const {
  if (phase_ == Phase::kUp) return {};
  std::vector<std::string> missing;
  std::vector<std::string> loading;
  std::int32_t next = 0;
  for (const Seat& seat : seats_) {
    if (seat.process.first_rank > next)
      missing.push_back("a process with " + ranks_text(next, seat.process.first_rank));
    next = end_rank(seat.process);
    if (!seat.link)
      missing.push_back(describe(seat.process));
    else if (!seat.ready)
      loading.push_back(describe(seat.process));
  }
  if (next < options_.total_ranks) missing.push_back("a process with " + ranks_text(next, options_.total_ranks));
  if (!missing.empty()) return fmt::format("{} to join", fmt::join(missing, ", "));
  if (!loading.empty()) return fmt::format("{} to load", fmt::join(loading, ", "));
  return "all processes to link up";
}

Assembly::Seat* Assembly::seat_of(LinkId link) {
  const auto found = std::find_if(seats_.begin(), seats_.end(), [&](const Seat& seat) { return seat.link == link; });
  return found == seats_.end() ? nullptr : &*found;
}

void Assembly::drop(std::int32_t process, const std::string& why, TimePoint now, Orders& orders) {
  phase_ = Phase::kApart;
  form_not_before_ = now + options_.form_pause;
  tell_all(Drop{epoch_, process, why}, orders);
}

void Assembly::set_up(Orders& orders) {
  phase_ = Phase::kUp;
  tell_all(Up{epoch_}, orders);
}

void Assembly::tell_all(const Message& message, Orders& orders) const {
  for (const Seat& seat : seats_)
    if (seat.link) orders.push_back({*seat.link, message});
}

void Assembly::tell_waiting(Orders& orders) {
  std::string text = waiting_for();
  if (text == told_waiting_) return;
  told_waiting_ = text;
  tell_all(Waiting{std::move(text)}, orders);
}

std::vector<ProcessInfo> Assembly::processes() const {
  std::vector<ProcessInfo> processes;
  processes.reserve(seats_.size());
  for (const Seat& seat : seats_) processes.push_back(seat.process);
  return processes;
}

}  // namespace tandem::comm
