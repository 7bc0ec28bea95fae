// SPDX-License-Identifier: Apache-2.0
#include "transfer/sliced_job.h"

#include <utility>

namespace tandem::transfer {

std::shared_ptr<SlicedJob> SlicedJob::start(EventLoop& loop, WorkPool& pool, std::size_t num_slices,
                                            std::function<void(std::size_t)> slice, std::function<void()> done) {
  std::shared_ptr<SlicedJob> job(new SlicedJob(loop, pool, num_slices));
  job->slice_ = std::move(slice);
  job->done_ = std::move(done);
  const int lanes = num_slices > 1 ? 2 : 1;
  job->lanes_.store(lanes);
  for (int lane = 0; lane < lanes; ++lane) pool.submit([job] { job->run_one(); });
  return job;
}

void SlicedJob::run_one() {
  const std::size_t index = next_.fetch_add(1);
  if (index < num_slices_ && !cancelled()) {
    slice_(index);
    // At the end of the queue again: slices of other jobs come in between.
    pool_.submit([job = shared_from_this()] { job->run_one(); });
    return;
  }
  if (lanes_.fetch_sub(1) > 1) return;
  loop_.post([job = shared_from_this()] {
    job->slice_ = nullptr;
    const std::function<void()> done = std::exchange(job->done_, nullptr);
    done();
  });
}

}  // namespace tandem::transfer
