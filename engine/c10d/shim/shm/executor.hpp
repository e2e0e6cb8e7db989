// The order of a group's collectives: one at a time, in the order of their calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

#include "collectives.hpp"

namespace shm {

// A collective, and the function to call at its end.
struct Job {
  std::unique_ptr<Collective> collective;
  Milliseconds timeout;
  std::function<void(std::exception_ptr)> end; // gets null if it succeeded
  bool begun = false;
};

class Executor {
 public:
  explicit Executor(Members& members) : members_(members) {}
  // Ends all jobs first; each ends at its deadline at the latest.
  ~Executor();

  // Runs the job here if the caller waits for it or all ranks are in it, and otherwise on the group's thread. So the last
  // bucket costs no thread switch on the rank that arrives last.
  void launch(Job job, bool caller_waits);
  // Waits until all jobs have ended.
  bool drain(Clock::time_point until);

 private:
  // Returns false if the job must wait for others; it may have begun.
  bool ends_here(Job& job, bool caller_waits);
  void run(Job& job, Patience patience);
  void work();

  Members& members_;
  std::mutex mutex_;
  std::condition_variable added_, ended_;
  std::deque<Job> jobs_;
  bool busy_ = false; // a job that is not in the list is running
  bool stop_ = false;
  std::thread thread_;
};

} // namespace shm
