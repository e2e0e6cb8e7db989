// The ranks of a group in shared memory: their segments, their deaths, and the waits for them.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "segment.hpp"

namespace shm {

using Clock = std::chrono::steady_clock;
// What a bell's sleeper waits for, if not one rank.
constexpr uint32_t kAnyRank = ~uint32_t{0}, kMessages = 0;

using Milliseconds = std::chrono::milliseconds;

// Used in place of the rank that caused a failure.
constexpr int kUnknown = -1, kElsewhere = -2; // kElsewhere: some rank that is not waited for in memory

// A failed operation. src/error.rs recognizes its kind by the text.
struct Failure : std::runtime_error {
  explicit Failure(const std::string& text, int culprit = kUnknown) : std::runtime_error(text), culprit(culprit) {}
  int culprit; // the name of the rank that caused it
};

// " because of rank 3"; empty if nobody is known.
std::string because_of(int culprit);

// The ranks called different operations. No tensor has been changed, and if all ranks compare, all notice it.
struct Mismatch : Failure {
  using Failure::Failure;
};

// When an operation gives up, and the time that it was given.
struct Deadline {
  Clock::time_point at;
  Milliseconds given;

  static Deadline in(Milliseconds time);
};

// How long a rank has waited in collectives, and for whom.
struct Waits {
  std::vector<double> seconds; // for each rank, in waits that have ended
  int now_for = -1;            // the rank that delays the wait in progress; kElsewhere if it is on another host, -1 if there is no wait
  double now_seconds = 0;      // how long the wait has taken
};

// The kind of wait: a thread that the caller waits for spins first.
enum class Patience { Spin, Sleep };

class Members {
 public:
  // `segments` is in rank order; `sockets` has a connection to each peer, and -1 for this rank. Takes ownership of both. `names`
  // are the members' ranks in errors of collectives; a group whose names differ from positions sends no messages.
  Members(int rank, std::shared_ptr<Arena> own, std::vector<std::unique_ptr<Segment>> peers, std::vector<int> sockets,
          std::vector<int> names);
  ~Members();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int name(int rank) const { return names_[rank]; }
  const Segment& of(int rank) const { return rank == rank_ ? arena_->segment() : *peers_[rank]; }
  Control& control(int rank) const { return of(rank).control(); }
  Control& own() const { return control(rank_); }
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  // Tells the others on which core this rank is. Relaxed: an old value costs them time only.
  void show_core() const { own().core.store(core(), std::memory_order_relaxed); }
  // Wakes the threads of other ranks that sleep until this rank writes something.
  void ring_steps() const;
  void ring_message(int to) const;
  void ring_all() const;

  // Waits until `reached` holds, which depends on what `on` writes.
  template <class Reached>
  void wait(int on, Reached&& reached, const Deadline& deadline, Patience patience) {
    if (reached()) return;
    const Waiting waiting(*this, on);
    if (patience == Patience::Spin && spins_ && spin(on, reached)) return;
    sleep(own().step, static_cast<uint32_t>(on) + 1, deadline, [&](bool last) {
      if (reached()) return true;
      if (last) throw_late(deadline, origin(laggard(on)));
      check_alive(on, reached);
      if (between_) between_();
      return false;
    });
  }

  // As `wait`, for a condition that depends on any rank.
  template <class Reached>
  void wait_any(Reached&& reached, const Deadline& deadline, Patience patience) {
    if (reached()) return;
    const Waiting waiting(*this, combining());
    if (patience == Patience::Spin && spins_ && spin(-1, reached)) return;
    sleep(own().step, kAnyRank, deadline, [&](bool last) {
      if (reached()) return true;
      if (last) throw_late(deadline, combining());
      for (int rank = 0; rank < size_; ++rank)
        if (rank != rank_) check_alive(rank, reached);
      return false;
    });
  }

  // Waits until `look` returns true, which depends on messages from `from`, or from any rank if that is -1. The argument of
  // `look` is true after the deadline.
  template <class Look>
  void wait_for_message(int from, const Deadline& deadline, Look&& look) {
    if (look(false) || (spins_ && spin(from, [&] { return look(false); }))) return;
    const Awaiting awaiting(own().awaits, from);
    sleep(own().message, kMessages, deadline, look);
  }

  // Throws if nothing more comes from `rank` and `reached` does not hold.
  template <class Reached>
  void check_alive(int rank, Reached&& reached) const {
    if (aborted_.load()) throw Failure(kAbortedHere);
    if (is_lost(rank) && !reached()) throw_lost(rank);
  }

  bool is_gone(int rank) const { return gone_[rank].load(); }
  bool is_lost(int rank) const { return is_gone(rank) || control(rank).failed.load() != 0; }
  bool has_left(int rank) const { return control(rank).left.load() != 0; }
  [[noreturn]] void throw_lost(int rank) const;
  // Follows the waits from `late` to the rank that it waits for, and so on. Returns the rank that delays all of them.
  int origin(int late) const;
  [[noreturn]] void throw_late(const Deadline& deadline, int rank) const;

  // May be called by any thread.
  Waits waits() const;

  // While it lives, this rank waits for other hosts, or in memory for the rank that does: no rank of this host is late.
  struct ForOtherHosts {
    explicit ForOtherHosts(Members& members);
    ~ForOtherHosts();
    Members& members;
  };

  // Ends this rank's part in the group: its own later operations fail, and so do those of peers that wait for it. Their
  // errors name the culprit, if known.
  void fail(int culprit = kUnknown);
  void check_not_failed() const;
  void abort();
  // Called by a thread that waits, before it sleeps again.
  void between_waits(std::function<void()> call) { between_ = std::move(call); }

  // In-place sums so far, in tiles; the same on all ranks.
  uint64_t tiles = 0;

 private:
  // The peer with the least progress; `on` if no peer has less.
  int laggard(int on) const;
  uint64_t progress(int rank) const;
  // The rank whose message `rank` waits for, unless it has arrived; -1 if there is none.
  int awaited_by(int rank) const;
  // The first rank that has begun a tile and not ended it.
  int combining() const;

  template <class Reached>
  bool spin(int on, Reached&& reached) const {
    const auto until = Clock::now() + kSpin;
    do {
      // A rank on the same core cannot make progress while this one spins. Relaxed: an old value costs a spin or a sleep.
      if (on >= 0 && control(on).core.load(std::memory_order_relaxed) == core()) return false;
      for (int i = 0; i < 64; ++i) {
        if (reached()) return true;
        pause();
      }
    } while (Clock::now() < until);
    return false;
  }

  // The order matters: a peer first writes and then looks for a sleeper; this rank first announces that it sleeps and then looks.
  template <class Look>
  void sleep(Bell& bell, uint32_t on, const Deadline& deadline, Look&& look) {
    const Sleeper sleeper(bell, on);
    for (;;) {
      const uint32_t heard = bell.rings.load();
      if (look(Clock::now() >= deadline.at)) return;
      sleep_until(bell.rings, heard, deadline.at);
    }
  }

  // Several threads may wait for messages, but only one for steps. A thread that gives up a wait for a step leaves its mark, as
  // `Awaiting` does.
  struct Sleeper {
    Sleeper(Bell& bell, uint32_t on);
    ~Sleeper();
    Bell& bell;
    const uint32_t on;
    const int exceptions = std::uncaught_exceptions();
  };

  // Counts a wait for a rank in a collective, which only one thread at a time runs. This rank itself as `on` means no particular
  // rank.
  struct Waiting {
    Waiting(Members& members, int on);
    ~Waiting();
    Members& members;
    const int on;
    const Clock::time_point begun;
  };

  // Tells the others whose message this rank waits for, even after it has given up. The rank has failed then, but others whose
  // deadlines pass at the same moment may look before they learn of it, and would name this rank instead of the one that it waited for.
  struct Awaiting {
    Awaiting(std::atomic<uint32_t>& word, int from) : word(word) { word.store(static_cast<uint32_t>(from + 1)); }
    ~Awaiting() {
      if (std::uncaught_exceptions() == exceptions) word.store(0);
    }
    std::atomic<uint32_t>& word;
    const int exceptions = std::uncaught_exceptions();
  };

  static void pause();
  static int core();
  static void sleep_until(std::atomic<uint32_t>& word, uint32_t value, Clock::time_point until);
  static void ring(Bell& bell);
  void watch();

  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr const char* kAbortedHere = "connection closed: the group was aborted on this rank";

  const int rank_, size_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<std::unique_ptr<Segment>> peers_;
  std::vector<int> sockets_;
  const std::vector<int> names_;
  std::unique_ptr<std::atomic<bool>[]> gone_;
  std::unique_ptr<std::atomic<int64_t>[]> waited_; // nanoseconds in waits for each rank that have ended
  std::atomic<int> waits_on_{-1};                  // the rank that the wait in progress is for
  std::atomic<int64_t> waits_since_{0};            // its start, in nanoseconds of the clock; 0 if there is none
  std::atomic<int64_t> other_hosts_since_{0};      // the same for a wait for other hosts
  std::atomic<bool> aborted_{false};
  bool spins_;
  std::function<void()> between_;
  int stop_;
  std::thread watcher_;
};

} // namespace shm
