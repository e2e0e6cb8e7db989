// Messages between two ranks. A message waits in its sender's arena until the receiver copies it; a sender does not wait for that
// unless many bytes are in transit.
#pragma once

#include <exception>
#include <list>

#include "members.hpp"

namespace shm {

constexpr int kAnySource = -1;

class Messages {
 public:
  // A message that this rank sends or receives.
  struct Transfer {
    int peer = 0; // kAnySource until it is known
    int32_t tag = 0;
    char* memory = nullptr;
    size_t bytes = 0;
    Call call;
    bool ended = false;
    std::string error;           // if it failed
    std::shared_ptr<void> owner; // of the memory
  };
  using TransferPtr = std::shared_ptr<Transfer>;

  // With `compares`, a message whose shape or dtype differs from the receiver's is an error; otherwise only a longer message
  // is.
  Messages(Members& members, bool compares);

  void send(const TransferPtr& message);
  void receive(const TransferPtr& message);
  // Returns when the transfer has ended. Throws if it fails or is late; then its memory is no longer used.
  void wait(const TransferPtr& message, const Deadline& deadline);
  bool has_ended(const TransferPtr& message);
  // Forgets a transfer that has not ended.
  void cancel(const TransferPtr& message);
  // Sends and receives whatever is possible now.
  void progress();

  // As in Gloo: rank 0 waits for all ranks, and names those that do not arrive.
  void monitored_barrier(Milliseconds timeout, bool wait_all);

 private:
  void reclaim(int to);
  bool push(Transfer& message);
  bool pull(Transfer& message);
  bool pull_from(int from, Transfer& message);
  void take(int from, Message& from_peer, Transfer& into);
  // Why a transfer that has not ended will not end.
  std::exception_ptr loss(const Transfer& message);
  void check(const Transfer& message) const;
  void check_peer(int peer) const;
  [[noreturn]] void throw_late(const Transfer& message, const Deadline& deadline) const;
  static std::string what(const Transfer& message);

  Members& members_;
  const bool compares_;
  std::mutex mutex_;
  std::atomic<size_t> pending_{0};
  std::list<TransferPtr> unsent_, expected_;
  std::vector<std::vector<uint64_t>> places_; // by peer: of the messages in its queue; kNowhere where an entry is free
  size_t under_way_ = 0;           // bytes of sent messages that have not been received
  int32_t barriers_ = 0;
};

} // namespace shm
