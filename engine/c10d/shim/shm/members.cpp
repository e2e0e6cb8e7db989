// Sleeping, waking, and noticing deaths: the kernel closes the sockets of a rank that dies, and a thread waits for that.

#include "members.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace shm;

namespace {

// Values of `failed`: 1 for a failure that is not due to another rank, kNotHere for one due to a rank that it waited for elsewhere,
// kAborted for an abort, otherwise kCulprit plus the culprit's name.
constexpr uint32_t kCulprit = 2, kNotHere = ~uint32_t{0}, kAborted = kNotHere - 1;

uint32_t word_of(int culprit) {
  if (culprit == kElsewhere) return kNotHere;
  return culprit < 0 ? 1 : kCulprit + static_cast<uint32_t>(culprit);
}

int culprit_of(uint32_t word) {
  if (word == kNotHere) return kElsewhere;
  return word < kCulprit || word == kAborted ? kUnknown : static_cast<int>(word - kCulprit);
}

int64_t nanoseconds(Clock::duration time) { return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(); }

int64_t now() { return nanoseconds(Clock::now().time_since_epoch()); }

double seconds(int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

size_t cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<size_t>(CPU_COUNT(&set));
}

} // namespace

std::string shm::because_of(int culprit) {
  if (culprit == kElsewhere) return " because of a rank that it waited for over Gloo";
  return culprit < 0 ? "" : " because of rank " + std::to_string(culprit);
}

// c10d's "no limit" is so many years that it does not fit in a time point.
Deadline Deadline::in(Milliseconds time) {
  constexpr auto kMost = std::chrono::hours(24 * 365 * 10);
  return {Clock::now() + std::min<Milliseconds>(time, kMost), time};
}

Members::Members(int rank, std::shared_ptr<Arena> own, std::vector<std::unique_ptr<Segment>> peers, std::vector<int> sockets,
                 std::vector<int> names)
    : rank_(rank),
      size_(static_cast<int>(peers.size())),
      arena_(std::move(own)),
      peers_(std::move(peers)),
      sockets_(std::move(sockets)),
      names_(std::move(names)),
      gone_(new std::atomic<bool>[peers_.size()]()),
      waited_(new std::atomic<int64_t>[peers_.size()]()),
      spins_(static_cast<size_t>(size_) <= cores()),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0) {
    const Failure failure(std::string("eventfd: ") + std::strerror(errno));
    for (int socket : sockets_)
      if (socket >= 0) ::close(socket);
    throw failure;
  }
  if (size_ > 1) watcher_ = std::thread([this] { watch(); });
}

// Sets the flag before it closes the connections, so a peer that sees a connection closed knows why.
Members::~Members() {
  if (!own().failed.load()) own().left.store(1);
  const uint64_t one = 1;
  (void)!::write(stop_, &one, sizeof one);
  if (watcher_.joinable()) watcher_.join();
  for (int socket : sockets_)
    if (socket >= 0) ::close(socket);
  ::close(stop_);
}

void Members::watch() {
  std::vector<pollfd> watched{{stop_, POLLIN, 0}};
  std::vector<int> ranks{-1};
  for (int rank = 0; rank < size_; ++rank) {
    if (sockets_[rank] < 0) continue;
    watched.push_back({sockets_[rank], POLLIN, 0});
    ranks.push_back(rank);
  }
  while (watched[0].revents == 0) {
    if (::poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      gone_[ranks[i]].store(true);
      watched[i].fd = -1;
      watched[i].revents = 0;
      ring(own().step);
      ring(own().message);
    }
  }
}

// ---- bells

int Members::core() { return ::sched_getcpu(); }

void Members::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not a private futex, because other processes wake it. May return for any reason, so the caller looks again.
void Members::sleep_until(std::atomic<uint32_t>& word, uint32_t value, Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count();
  timespec time{static_cast<time_t>(std::max<int64_t>(left, 0) / 1000000000), static_cast<long>(std::max<int64_t>(left, 0) % 1000000000)};
  (void)::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void Members::ring(Bell& bell) {
  bell.rings.fetch_add(1);
  (void)::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell.rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Members::ring_steps() const {
  for (int peer = 0; peer < size_; ++peer) {
    auto& bell = control(peer).step;
    const uint32_t on = peer == rank_ ? 0 : bell.sleeper.load();
    if (on == static_cast<uint32_t>(rank_) + 1 || on == kAnyRank) ring(bell);
  }
}

// A rank that waits for a step also receives messages.
void Members::ring_message(int to) const {
  if (control(to).message.sleeper.load() != 0) ring(control(to).message);
  if (control(to).step.sleeper.load() != 0) ring(control(to).step);
}

void Members::ring_all() const {
  for (int rank = 0; rank < size_; ++rank) {
    ring(control(rank).step);
    ring(control(rank).message);
  }
}

Members::Sleeper::Sleeper(Bell& bell, uint32_t on) : bell(bell), on(on) {
  if (on == kMessages) bell.sleeper.fetch_add(1);
  else bell.sleeper.store(on);
}

Members::Sleeper::~Sleeper() {
  if (on == kMessages) bell.sleeper.fetch_sub(1);
  else if (std::uncaught_exceptions() == exceptions) bell.sleeper.store(0);
}

// ---- waits

Members::Waiting::Waiting(Members& members, int on) : members(members), on(on), begun(Clock::now()) {
  members.waits_on_.store(on);
  members.waits_since_.store(nanoseconds(begun.time_since_epoch()));
}

Members::Waiting::~Waiting() {
  members.waits_since_.store(0);
  if (on == members.rank_ || members.other_hosts_since_.load() != 0) return;
  // Relaxed, like the reads: the sum is for reports, and publishes nothing else.
  members.waited_[on].fetch_add(nanoseconds(Clock::now() - begun), std::memory_order_relaxed);
}

Members::ForOtherHosts::ForOtherHosts(Members& members) : members(members) { members.other_hosts_since_.store(now()); }

Members::ForOtherHosts::~ForOtherHosts() { members.other_hosts_since_.store(0); }

// A wait that ends meanwhile does not count.
Waits Members::waits() const {
  Waits all;
  for (int rank = 0; rank < size_; ++rank) all.seconds.push_back(seconds(waited_[rank].load(std::memory_order_relaxed)));
  if (const int64_t since = other_hosts_since_.load(); since != 0) {
    all.now_for = kElsewhere;
    all.now_seconds = seconds(now() - since);
    return all;
  }
  const int64_t since = waits_since_.load();
  if (since == 0) return all;
  const int on = waits_on_.load();
  const int late = on == rank_ ? combining() : origin(laggard(on));
  if (late == rank_ || waits_since_.load() != since) return all;
  all.now_for = late;
  all.now_seconds = seconds(now() - since);
  return all;
}

// ---- failures

// A rank that failed because of another one may end before the other one's end is noticed here, so its flag is read first.
void Members::throw_lost(int rank) const {
  const auto closed = "connection closed by peer: rank " + std::to_string(name(rank));
  const uint32_t failed = control(rank).failed.load();
  if (failed == kAborted) throw Failure(closed + " has aborted the group", name(rank));
  const int culprit = culprit_of(failed);
  if (culprit != kUnknown) throw Failure(closed + " gave up" + because_of(culprit), culprit);
  if (failed != 0) throw Failure(closed + " gave up after a failure of its own", name(rank));
  throw Failure(closed + (has_left(rank) ? " has left the group" : " has exited or was killed"), name(rank));
}

void Members::throw_late(const Deadline& deadline, int rank) const {
  const auto text = "Timed out waiting " + std::to_string(deadline.given.count()) + "ms for rank " + std::to_string(name(rank));
  if (control(rank).elsewhere.load() != 0) throw Failure(text + ", which waits over Gloo", kElsewhere);
  throw Failure(text, name(rank));
}

uint64_t Members::progress(int rank) const {
  const auto& of = control(rank);
  return of.posted.load() + of.reduced.load() + of.done.load();
}

// A rank that waits for another one delays a third, which should not name it.
int Members::laggard(int on) const {
  int last = on;
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && progress(rank) < progress(last)) last = rank;
  return last;
}

// A stopped rank may seem to wait for a message that has arrived meanwhile.
int Members::awaited_by(int rank) const {
  const auto from = static_cast<int>(control(rank).awaits.load()) - 1;
  if (from < 0 || from == rank) return -1;
  const auto& messages = of(from).queue(static_cast<size_t>(rank)).messages;
  const auto waits = [](const Message& message) { return message.waits.load() != 0; };
  return std::any_of(std::begin(messages), std::end(messages), waits) ? -1 : from;
}

int Members::origin(int late) const {
  for (int steps = 0; steps < size_; ++steps) {
    int next = awaited_by(late);
    if (next < 0 && control(late).step.sleeper.load() != 0) next = laggard(late);
    if (next < 0 || next == late || next == rank_) break;
    late = next;
  }
  return late;
}

int Members::combining() const {
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && control(rank).combining.load() != 0) return rank;
  return rank_;
}

void Members::fail(int culprit) {
  arena_->keep_all();
  uint32_t none = 0;
  if (own().failed.compare_exchange_strong(none, word_of(culprit))) ring_all();
}

void Members::check_not_failed() const {
  const uint32_t failed = own().failed.load();
  if (failed == 0) return;
  if (aborted_.load()) throw Failure(kAbortedHere);
  const int culprit = culprit_of(failed);
  throw Failure("connection closed: an earlier operation of this group failed on this rank" + because_of(culprit), culprit);
}

void Members::abort() {
  arena_->keep_all();
  aborted_.store(true);
  uint32_t none = 0;
  own().failed.compare_exchange_strong(none, kAborted);
  ring_all();
}
