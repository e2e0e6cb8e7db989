// Runs collectives on the caller's thread or on the group's.

#include "executor.hpp"

using namespace shm;

Executor::~Executor() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  added_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Executor::launch(Job job, bool caller_waits) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (busy_ || !jobs_.empty()) {
    jobs_.push_back(std::move(job));
  } else {
    busy_ = true;
    lock.unlock();
    const bool ended = ends_here(job, caller_waits);
    lock.lock();
    busy_ = false;
    if (!ended) jobs_.push_front(std::move(job));
    if (jobs_.empty()) return ended_.notify_all();
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  lock.unlock();
  added_.notify_all();
}

bool Executor::ends_here(Job& job, bool caller_waits) {
  if (!caller_waits && !members_.own().failed.load()) {
    if (!job.collective->can_begin()) return false;
    job.collective->begin(Deadline::in(job.timeout), Patience::Sleep);
    job.begun = true;
    if (!job.collective->all_have_begun()) return false;
  }
  run(job, Patience::Spin);
  return true;
}

// After a failure the group is unusable: later jobs fail at once, and so do peers that wait for this rank.
void Executor::run(Job& job, Patience patience) {
  std::exception_ptr failure;
  const auto deadline = Deadline::in(job.timeout);
  try {
    members_.check_not_failed();
    if (!job.begun) job.collective->begin(deadline, patience);
    job.collective->finish(deadline, patience);
  } catch (const Mismatch&) {
    failure = std::current_exception();
    if (!job.collective->compares()) members_.fail();
  } catch (const Failure& known) {
    failure = std::current_exception();
    members_.fail(known.culprit);
  } catch (...) {
    failure = std::current_exception();
    members_.fail();
  }
  job.end(failure);
}

void Executor::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    added_.wait(lock, [&] { return (!jobs_.empty() && !busy_) || (stop_ && jobs_.empty()); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    run(job, Patience::Sleep);
    job = Job();
    lock.lock();
    busy_ = false;
    ended_.notify_all();
  }
}

bool Executor::drain(Clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_until(lock, until, [&] { return jobs_.empty() && !busy_; });
}
