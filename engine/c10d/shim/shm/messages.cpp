// Queues of messages: one in each rank's memory for each receiver. A receiver takes messages by tag, in any order.
//
// Messages have no thread of their own. Every thread that waits for anything in the group also moves messages on.

#include "messages.hpp"

#include <algorithm>

using namespace shm;

namespace {

// A rank with this many sent bytes that have not been received waits before it sends more.
constexpr size_t kMostUnderWay = size_t{64} << 20;

} // namespace

Messages::Messages(Members& members, bool compares)
    : members_(members),
      compares_(compares),
      places_(static_cast<size_t>(members.size()), std::vector<uint64_t>(kQueue, kNowhere)) {
  members_.between_waits([this] {
    if (pending_.load() > 0) progress();
  });
}

void Messages::send(const TransferPtr& message) {
  members_.check_not_failed();
  try {
    check_peer(message->peer);
  } catch (const Failure& failure) {
    members_.fail(failure.culprit); // peers that wait for this rank then learn the culprit
    throw;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const bool waits = std::any_of(unsent_.begin(), unsent_.end(), [&](const auto& other) { return other->peer == message->peer; });
  if (!waits && push(*message)) return;
  unsent_.push_back(message);
  ++pending_;
}

void Messages::receive(const TransferPtr& message) {
  members_.check_not_failed();
  std::lock_guard<std::mutex> lock(mutex_);
  // An earlier call with the same tag gets the first message.
  const bool waits = std::any_of(expected_.begin(), expected_.end(), [&](const auto& other) { return other->tag == message->tag; });
  if (!waits && pull(*message)) return;
  expected_.push_back(message);
  ++pending_;
}

bool Messages::has_ended(const TransferPtr& message) {
  progress();
  std::lock_guard<std::mutex> lock(mutex_);
  return message->ended;
}

void Messages::wait(const TransferPtr& message, const Deadline& deadline) {
  try {
    members_.wait_for_message(message->peer, deadline, [&](bool last) {
      // Before the look: a peer may send and then leave.
      const auto lost = loss(*message);
      progress();
      std::lock_guard<std::mutex> lock(mutex_);
      if (message->ended) return true;
      if (lost) std::rethrow_exception(lost);
      if (last) throw_late(*message, deadline);
      return false;
    });
  } catch (...) {
    cancel(message);
    throw;
  }
  if (!message->error.empty()) throw Mismatch(message->error);
}

void Messages::progress() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int> full;
  for (auto it = unsent_.begin(); it != unsent_.end();) {
    const int to = (*it)->peer;
    if (std::find(full.begin(), full.end(), to) != full.end() || !push(**it)) {
      full.push_back(to);
      ++it;
      continue;
    }
    it = unsent_.erase(it);
    --pending_;
  }
  for (auto it = expected_.begin(); it != expected_.end();) {
    if (!pull(**it)) {
      ++it;
      continue;
    }
    it = expected_.erase(it);
    --pending_;
  }
}

void Messages::cancel(const TransferPtr& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* list : {&unsent_, &expected_}) {
    const auto it = std::find(list->begin(), list->end(), message);
    if (it == list->end()) continue;
    list->erase(it);
    --pending_;
  }
}

// ---- sending

void Messages::reclaim(int to) {
  const auto& queue = members_.of(members_.rank()).queue(to);
  for (size_t i = 0; i < kQueue; ++i) {
    auto& place = places_[to][i];
    if (place == kNowhere || queue.messages[i].waits.load() != 0) continue;
    members_.arena()->give_back(std::exchange(place, kNowhere));
    under_way_ -= queue.messages[i].bytes;
  }
}

bool Messages::push(Transfer& message) {
  const int to = message.peer;
  reclaim(to);
  auto& queue = members_.of(members_.rank()).queue(to);
  const auto free = std::find(places_[to].begin(), places_[to].end(), kNowhere);
  if (free == places_[to].end()) return false;
  if (under_way_ > 0 && under_way_ + message.bytes > kMostUnderWay) {
    for (int peer = 0; peer < members_.size(); ++peer)
      if (peer != members_.rank()) reclaim(peer);
    if (under_way_ > 0 && under_way_ + message.bytes > kMostUnderWay) return false;
  }
  const uint64_t place = members_.arena()->take(message.bytes);
  if (place == kNowhere) {
    if (under_way_ > 0) return false;
    message.error = "no shared memory is left for a message of " + std::to_string(message.bytes) + " bytes";
    return message.ended = true;
  }
  std::memcpy(members_.of(members_.rank()).at(place), message.memory, message.bytes);
  const uint64_t number = queue.sent.load();
  auto& entry = queue.messages[free - places_[to].begin()];
  entry.tag = message.tag;
  entry.number = number;
  entry.call = message.call;
  entry.place = *free = place;
  entry.bytes = message.bytes;
  under_way_ += message.bytes;
  members_.show_core();
  entry.waits.store(1);
  queue.sent.store(number + 1);
  members_.ring_message(to);
  return message.ended = true;
}

// ---- receiving

bool Messages::pull(Transfer& message) {
  if (message.peer != kAnySource) return pull_from(message.peer, message);
  for (int from = 0; from < members_.size(); ++from)
    if (from != members_.rank() && pull_from(from, message)) return true;
  return false;
}

// Takes the first of the messages that had been sent when the search began: a later one must not overtake it.
bool Messages::pull_from(int from, Transfer& message) {
  auto& queue = members_.of(from).queue(members_.rank());
  const uint64_t sent = queue.sent.load();
  Message* first = nullptr;
  for (auto& entry : queue.messages) {
    if (entry.waits.load() == 0 || entry.number >= sent || entry.tag != message.tag) continue;
    if (first == nullptr || entry.number < first->number) first = &entry;
  }
  if (first == nullptr) return false;
  take(from, *first, message);
  return true;
}

void Messages::take(int from, Message& entry, Transfer& into) {
  const bool differs = compares_ && into.tag >= 0 && !entry.call.equals(into.call);
  if (differs || entry.bytes > into.bytes) {
    into.error = "Detected mismatch between messages: rank " + std::to_string(from) + " sent " + describe_tensor(entry.call) +
                 " where rank " + std::to_string(members_.rank()) + " receives " + describe_tensor(into.call);
  } else {
    std::memcpy(into.memory, members_.of(from).at(entry.place), entry.bytes);
  }
  into.peer = from;
  into.ended = true;
  entry.waits.store(0);
  members_.ring_message(from);
}

// ---- failures

std::string Messages::what(const Transfer& message) {
  if (message.peer == kAnySource) return "a message of any rank";
  return "a message of or to rank " + std::to_string(message.peer);
}

// Names the rank that delays the message's other rank, if there is one.
void Messages::throw_late(const Transfer& message, const Deadline& deadline) const {
  const int peer = message.peer;
  const int origin = peer == kAnySource ? peer : members_.origin(peer);
  const auto why = origin == peer ? "" : ", which waits because of rank " + std::to_string(origin);
  throw Failure("Timed out waiting " + std::to_string(deadline.given.count()) + "ms for " + what(message) + why, origin);
}

std::exception_ptr Messages::loss(const Transfer& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (message.ended) return nullptr;
  try {
    check(message);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void Messages::check_peer(int peer) const { members_.check_alive(peer, [] { return false; }); }

// A message from any rank may still come from a living rank, but a rank that died may have been the sender.
void Messages::check(const Transfer& message) const {
  members_.check_not_failed();
  if (message.peer != kAnySource) return check_peer(message.peer);
  bool some = false;
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (peer == members_.rank()) continue;
    if (members_.is_lost(peer) && !members_.has_left(peer)) members_.throw_lost(peer);
    some |= !members_.is_lost(peer);
  }
  if (!some) throw Failure("connection closed by peer: all other ranks have left the group");
}

// ---- the barrier

void Messages::monitored_barrier(Milliseconds timeout, bool wait_all) {
  const auto deadline = Deadline::in(timeout);
  const int32_t tag = -1 - barriers_++; // an earlier barrier's late messages must not count
  const auto token = [&](int peer) {
    auto made = std::make_shared<Transfer>();
    made->peer = peer;
    made->tag = tag;
    return made;
  };
  if (members_.rank() != 0) {
    try {
      send(token(0));
      const auto answer = token(0);
      receive(answer);
      wait(answer, deadline);
    } catch (const Failure& failure) {
      members_.fail(failure.culprit);
      throw Failure("Rank " + std::to_string(members_.rank()) + " successfully reached monitoredBarrier, but received errors while " +
                    "waiting for rank 0: " + failure.what());
    }
    return;
  }
  std::string missing, why;
  int count = 0, first = -1;
  for (int peer = 1; peer < members_.size(); ++peer) {
    const auto arrival = token(peer);
    try {
      receive(arrival);
      wait(arrival, deadline);
    } catch (const Failure& failure) {
      if (count == 0) first = failure.culprit;
      missing += (count++ == 0 ? "" : ", ") + std::to_string(peer);
      why = failure.what();
      if (!wait_all) break;
    }
  }
  if (count > 0) {
    members_.fail(first);
    throw Failure("[Rank 0]: Rank" + std::string(count == 1 ? " " : "s ") + missing + " failed to pass monitoredBarrier in " +
                  std::to_string(timeout.count()) + " ms: " + why);
  }
  for (int peer = 1; peer < members_.size(); ++peer) send(token(peer));
}
