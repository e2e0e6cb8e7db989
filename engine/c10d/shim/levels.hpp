// The levels of a group over several hosts, and how all its ranks learn that a rank is lost.
//
// A rank that gives up writes the culprit into the store, and then closes its connections. Ranks that find a connection closed
// look for this entry: a rank that closed its connections without one is lost.
//
// Not here: the collectives (two_levels.cpp, the only file that includes this one).

#pragma once

#include "gloo_connections.hpp"
#include "shim.hpp"
#include "shm/members.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

using namespace shim;

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Milliseconds = std::chrono::milliseconds;

// How long a rank waits for an answer of the store, whose host may be stopped.
constexpr Milliseconds kStorePatience{3000};
// How long after a connection was closed its rank's entry may still appear: when a rank's wait expires, Gloo closes all its
// connections before the rank knows it.
constexpr Milliseconds kWordPatience{1000};
// Between two looks at connections.
constexpr Milliseconds kLook{50};

// ---- the entries in the store of ranks that gave up

// Runs `call` on another thread. Returns true if it succeeds in time.
bool in_time(std::function<void()> call) noexcept {
  try {
    auto done = std::make_shared<std::promise<bool>>();
    auto future = done->get_future();
    std::thread([done, call = std::move(call)] {
      bool succeeded = true;
      try {
        call();
      } catch (...) {
        succeeded = false;
      }
      done->set_value(succeeded);
    }).detach();
    return future.wait_for(kStorePatience) == std::future_status::ready && future.get();
  } catch (...) {
    return false; // no thread could be started
  }
}

// Uses its own connection to the store, because another thread may be waiting on the group's. It is made before anything fails:
// libtorch's server looks up the name of each new client, and answers nobody meanwhile, which takes seconds if no name server
// answers.
class Words {
 public:
  // `names` are unique to this group, unlike its ranks: the store may have entries of an earlier attempt.
  Words(const StorePtr& store, std::vector<std::string> names) : store_(store->clone()), names_(std::move(names)) {}

  void leave(int rank, int culprit) const {
    (void)in_time([store = store_, key = key(rank), text = std::to_string(culprit)] {
      store->set(key, std::vector<uint8_t>(text.begin(), text.end()));
    });
  }

  // The culprits that these ranks name, by rank. Empty optional if the store does not answer.
  std::optional<std::map<int, int>> read(const std::vector<int>& ranks) const {
    std::map<int, std::string> keys;
    for (int rank : ranks) keys[rank] = key(rank);
    auto found = std::make_shared<std::map<int, int>>();
    if (ranks.empty()) return *found;
    const bool answered = in_time([store = store_, keys, found] {
      for (const auto& [rank, key] : keys) {
        if (!store->check({key})) continue;
        const auto text = store->get(key);
        (*found)[rank] = std::stoi(std::string(text.begin(), text.end()));
      }
    });
    if (!answered) return std::nullopt;
    return *found;
  }

 private:
  std::string key(int rank) const { return "lockstep/gave_up/" + names_[static_cast<size_t>(rank)]; }

  const StorePtr store_;
  const std::vector<std::string> names_;
};

// ---- Gloo's errors

std::string text_of(std::exception_ptr why) {
  try {
    std::rethrow_exception(std::move(why));
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

bool says(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* word) { return text.find(word) != std::string::npos; });
}

bool is_late(const std::string& text) { return says(text, {"imed out", "imeout"}); }

// Texts of Gloo's TCP transport, except those about the contents of messages.
bool is_loss(const std::string& text) { return is_late(text) || says(text, {"onnection", "ocket closed", "roken pipe", "o route"}); }

// ---- the levels

class Levels {
 public:
  // `local` has the ranks of this host, by position; `leaders` has the first rank of each host, and is null on the other
  // ranks; `all` has all ranks.
  Levels(int rank, std::vector<std::vector<int>> hosts, c10::intrusive_ptr<SharedMemory> local, BackendPtr leaders, BackendPtr all,
         Words words)
      : rank_(rank),
        hosts_(std::move(hosts)),
        local_(std::move(local)),
        leaders_(std::move(leaders)),
        all_(std::move(all)),
        words_(std::move(words)) {}

  int rank() const { return rank_; }
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  SharedMemory& local() const { return *local_; }
  // Null except on the first rank of a host.
  c10d::Backend* leaders() const { return leaders_.get(); }
  c10d::Backend& all() const { return *all_; }

  void set_timeout(Milliseconds timeout) const {
    local_->setTimeout(timeout);
    all_->setTimeout(timeout);
    if (leaders_) leaders_->setTimeout(timeout);
  }

  void check_not_failed() const {
    if (failed_) throw after_failure();
  }

  // Ends this rank's part in the group because an operation threw `why`. If the operation is a message, `peer` is its other rank.
  // Returns the exception to throw instead, which names the culprit.
  std::exception_ptr give_up(std::exception_ptr why, int peer = -1) {
    const std::lock_guard<std::mutex> lock(giving_up_);
    try {
      std::rethrow_exception(why);
    } catch (const shm::Failure& failure) {
      if (failed_) return why;
      // A rank of this host is late, maybe because it has waited for another host for as long as this rank has waited.
      const auto found = is_late(failure.what()) ? find_late(failure.culprit) : Found{failure.culprit, ""};
      end(found.culprit);
      return found.culprit == failure.culprit ? why : failure_of(found, failure.what());
    } catch (...) {
    }
    if (failed_) return std::make_exception_ptr(after_failure());
    const auto text = text_of(why);
    if (!is_loss(text)) {
      end(shm::kUnknown);
      return why;
    }
    const auto found = is_late(text) ? find_late(peer) : find_closed();
    // A rank that is late with a message may itself wait for another rank, so the others must not learn of it as the first
    // cause.
    end(is_late(text) && found.culprit == peer ? shm::kElsewhere : found.culprit);
    return failure_of(found, text);
  }

  // Leaves no entry: this rank is the lost one.
  void abort() {
    const std::lock_guard<std::mutex> lock(giving_up_);
    failed_ = true;
    local_->abort();
    close();
  }

 private:
  struct Found {
    int culprit;
    std::string text;
  };

  static Found nobody() { return {shm::kElsewhere, "waiting over Gloo: "}; }
  static Found named(int culprit) { return {culprit, "connection closed by peer: another rank gave up" + shm::because_of(culprit)}; }
  static Found closed(int culprit) { return {culprit, "connection closed by peer: rank " + std::to_string(culprit)}; }

  // An error without a culprit has Gloo's text.
  static std::exception_ptr failure_of(const Found& found, const std::string& text) {
    return std::make_exception_ptr(shm::Failure(found.text + (found.culprit < 0 ? text : ""), found.culprit));
  }

  shm::Failure after_failure() const {
    return shm::Failure("connection closed: an earlier operation of this group failed on this rank" + shm::because_of(culprit_), culprit_);
  }

  // The rank to which these entries lead, from each rank that gave up to its culprit. -1 if they lead to no rank but this one.
  int first_cause(const std::map<int, int>& words) const {
    for (const auto& [rank, culprit] : words) {
      int cause = culprit;
      // Two ranks that were late for each other may name each other.
      for (size_t i = 0; i < words.size(); ++i) {
        const auto next = words.find(cause);
        if (next == words.end()) break;
        cause = next->second;
      }
      if (cause >= 0 && cause != rank_) return cause;
    }
    return -1;
  }

  // The first rank that closes its connections and leaves no entry. Without the store, only a single closed connection
  // identifies the rank.
  Found find_closed() const {
    const auto until = shm::Clock::now() + kWordPatience;
    for (;;) {
      const bool last = shm::Clock::now() >= until;
      const auto ranks = closed_by(*all_);
      const auto words = words_.read(others());
      if (!words) return ranks.size() == 1 ? closed(ranks[0]) : nobody();
      if (const int cause = first_cause(*words); cause >= 0) return named(cause);
      for (int rank : ranks)
        if (last && words->count(rank) == 0) return closed(rank);
      if (last) return nobody();
      std::this_thread::sleep_for(kLook);
    }
  }

  // The culprit that the ranks that gave up name; otherwise the awaited rank, if it is known and leaves no entry in time: it may be giving
  // up at this moment.
  Found find_late(int peer) const {
    // Gloo closes this rank's connections at once, and then others look for its entry.
    words_.leave(rank_, shm::kElsewhere);
    const auto until = shm::Clock::now() + kWordPatience;
    for (;;) {
      const bool last = shm::Clock::now() >= until;
      const auto words = words_.read(others());
      if (!words) return nobody();
      if (const int cause = first_cause(*words); cause >= 0) return named(cause);
      if (last && (peer < 0 || words->count(peer) != 0)) return nobody();
      if (last) return {peer, "Timed out waiting for rank " + std::to_string(peer) + " over Gloo"};
      std::this_thread::sleep_for(kLook);
    }
  }

  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < all_->getSize(); ++rank)
      if (rank != rank_) ranks.push_back(rank);
    return ranks;
  }

  void end(int culprit) {
    culprit_ = culprit;
    failed_ = true;
    local_->fail(culprit);
    words_.leave(rank_, culprit == shm::kUnknown ? rank_ : culprit);
    close();
  }

  // After a wait has expired, Gloo's threads may still use memory of the groups, so the groups live until the process exits.
  void close() {
    (void)new std::vector<BackendPtr>{all_, leaders_};
    close_connections(*all_);
    if (leaders_) close_connections(*leaders_);
  }

  const int rank_;
  const std::vector<std::vector<int>> hosts_;
  const c10::intrusive_ptr<SharedMemory> local_;
  const BackendPtr leaders_, all_;
  const Words words_;
  std::mutex giving_up_;
  std::atomic<bool> failed_{false};
  std::atomic<int> culprit_{shm::kUnknown};
};

// An operation of all ranks' Gloo group, whose failure ends this rank's part in the whole group.
class OfAll : public c10d::Work {
 public:
  // A message has a `peer`, unless it may come from any rank.
  OfAll(OpType type, WorkPtr inner, std::shared_ptr<Levels> levels, int peer)
      : Work(-1, type), inner_(std::move(inner)), levels_(std::move(levels)), peer_(peer) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }

  // A caller may abandon a collective that goes on.
  bool wait(Milliseconds timeout) override {
    const Elsewhere waits(levels_->local());
    try {
      return inner_->wait(timeout);
    } catch (...) {
      if (!inner_->isCompleted()) throw;
      std::rethrow_exception(levels_->give_up(std::current_exception(), peer_));
    }
  }

 private:
  // While it lives, the ranks that share memory know that this rank waits for another host.
  struct Elsewhere {
    explicit Elsewhere(SharedMemory& local) : local(local) { local.waits_elsewhere(true); }
    ~Elsewhere() { local.waits_elsewhere(false); }
    SharedMemory& local;
  };

  const WorkPtr inner_;
  const std::shared_ptr<Levels> levels_;
  const int peer_;
};

// ---- order

// Runs a group's collectives one at a time, in the order of their calls.
class Queue {
 public:
  using Call = std::function<void()>;

  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  // Runs all calls first; each ends at its deadline at the latest.
  ~Queue() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Runs the call here if the caller waits for it, unless others are before it.
  void run(Call call, bool caller_waits) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (caller_waits && !busy_ && calls_.empty()) return run(std::move(call), lock);
    calls_.push_back(std::move(call));
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    changed_.notify_all();
  }

  // Waits until all calls have ended.
  bool drain(shm::Clock::time_point until) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, until, [&] { return calls_.empty() && !busy_; });
  }

 private:
  void run(Call call, std::unique_lock<std::mutex>& lock) {
    busy_ = true;
    lock.unlock();
    call();
    call = nullptr; // frees its captures before the next one begins
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !busy_ && (stop_ || !calls_.empty()); });
      if (calls_.empty()) return;
      Call call = std::move(calls_.front());
      calls_.pop_front();
      run(std::move(call), lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  bool busy_ = false; // a call that is not in the list is running
  bool stop_ = false;
  std::thread thread_;
};

} // namespace
