// A rank's memory that its peers map, and its layout: control words, message queues, slots for chunks, and an arena for buckets
// and messages.
//
// The table shows which word publishes what. Stores and read-modify-writes are sequentially consistent, so at least release, and loads
// are at least acquire, unless the last column says otherwise. A rank's load of its own `posted` is relaxed. engine/memory-model has a
// model of each protocol.
//
//   word              written by              what a reader may read once it sees the value                     needs
//   Control
//     posted          the rank                its slot, its entry in `calls`, and its tensor in the arena       release
//                                             if `place` says so: up to this step
//     reduced         the rank                its part of the sum in its slot                                   release
//     done            the rank                nothing: its own reads are over, so the peers may write to        release
//                                             their slots and tensors again
//     claimed         who takes a tile        nothing: only one rank gets each tile                             atomicity
//     finished        who has summed a tile   that tile in all tensors; later additions continue the release    release
//     failed          the rank                all that it posted and sent before                                release
//     left            the rank                the same; the kernel closes the connection after it, and the      release
//                                             peer that sees it closed has the word
//     combining       the rank                nothing: the text of a timeout names the rank                     -
//     awaits          the rank                nothing: the same                                                 -
//     elsewhere       the rank                nothing: the same                                                 -
//     core            the rank                nothing: a waiter that reads an old core spins 50 us or sleeps    relaxed
//   Bell
//     rings           who wakes               nothing: the sleeper looks again at what it waits for. The        atomicity
//                                             kernel compares the word under the lock that FUTEX_WAKE takes
//     sleeper         the rank                nothing: whether to ring. Who writes what a sleeper waits for     sequential
//                                             writes first and loads `sleeper` second; the sleeper stores it    consistency
//                                             first and looks second. One of the two sees the other only in
//                                             a total order of all four accesses
//   Queue
//     sent            the sender              `waits` = 1 of all earlier messages, so that none is passed over  release
//     waits = 1       the sender              the message's other fields, and its bytes in the arena            release
//     waits = 0       the receiver            nothing: its reads are over, so the entry and the bytes may be    release
//                                             written again
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shm {

constexpr size_t kLine = 64; // bytes of a cache line
constexpr size_t kBlock = 4096;            // places in the arena, and tiles of sums, are multiples of it, whatever the size of a page
constexpr size_t kSlots = 4;               // chunks that a rank may be ahead of the slowest reader
constexpr size_t kSlotBytes = 256 * 1024;  // a chunk; all slots fit in the second-level cache of one core
constexpr size_t kQueue = 32;              // messages of one rank for another that have not been received
constexpr uint64_t kNowhere = ~uint64_t{0};

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The system's page size: 4 KiB on x86-64; 4, 16 or 64 KiB on AArch64, depending on the kernel's build. Ranks that share
// memory have one kernel.
size_t page_size();

// A rank's description of its call, which the peers compare with their own.
struct Call {
  static constexpr size_t kSizes = 8;

  uint8_t op = 0;        // c10d::OpType
  uint8_t type = 0;      // c10::ScalarType
  uint8_t reduction = 0; // c10d::ReduceOp
  uint8_t dims = 0;
  int32_t root = 0;
  uint64_t bytes = 0;    // of the tensor that has the same size on all ranks
  int64_t sizes[kSizes] = {};
  uint64_t place = kNowhere; // of the tensor in the rank's arena; not compared

  bool agrees_with(const Call& other) const {
    return op == other.op && type == other.type && reduction == other.reduction && root == other.root && bytes == other.bytes;
  }
  bool equals(const Call& other) const { return std::memcmp(this, &other, offsetof(Call, place)) == 0; }
};

// "all_reduce(Sum) of [4] Float".
std::string describe(const Call& call);
// "[4] Float".
std::string describe_tensor(const Call& call);
// Ranks with the same text are grouped: "Ranks 0, 2: …; Rank 1: …".
std::string group_ranks(const std::vector<std::pair<int, std::string>>& texts);

// A message that waits in its sender's arena.
struct Message {
  std::atomic<uint32_t> waits; // 1 until it has been received
  int32_t tag;
  uint64_t number; // of the sender's messages to this rank
  Call call;
  uint64_t place, bytes;
};

struct Queue {
  alignas(kLine) std::atomic<uint64_t> sent; // messages so far
  Message messages[kQueue];
};

// Words that processes share must be lock-free: each process would have its own lock.
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<int32_t>::is_always_lock_free);

// The word on which the threads of a rank sleep. A thread that writes what a sleeper waits for increments it.
struct Bell {
  alignas(kLine) std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleeper; // for steps: the rank that is waited for, plus 1; for messages: the number of sleepers
};

// Every counter grows as long as the group lives.
struct Control {
  alignas(kLine) std::atomic<uint64_t> posted;   // steps whose chunk is in its slot
  alignas(kLine) std::atomic<uint64_t> reduced;  // steps whose part of the sum is in its slot
  alignas(kLine) std::atomic<uint64_t> done;     // steps that this rank has finished reading
  alignas(kLine) std::atomic<uint64_t> claimed;  // rank 0's only: tiles of in-place sums that a rank has begun
  alignas(kLine) std::atomic<uint64_t> finished; // rank 0's only: tiles of in-place sums that are complete
  alignas(kLine) std::atomic<uint32_t> failed;   // an operation has failed here, so no more steps come; also says why
  std::atomic<uint32_t> left;                    // the rank leaves the group without a failure
  std::atomic<uint32_t> combining;               // the rank is in a tile of an in-place sum
  std::atomic<uint32_t> awaits;                  // the rank whose message this one waits for, plus 1
  std::atomic<uint32_t> elsewhere;               // threads of the rank that wait for something outside of this memory
  std::atomic<int32_t> core;                     // on which the rank last published something
  Bell step, message;
  alignas(kLine) Call calls[kSlots];
};

// One rank's memory, as this process sees it.
class Segment {
 public:
  // Creates this rank's own segment, for a group of `size`, and reserves all of it but the arena. Each part begins on a page of
  // `page` bytes. Throws if the system refuses.
  static Segment make(size_t size, size_t page);
  // Maps a peer's segment, which was laid out for the same pages. Takes ownership of the file.
  Segment(int file, size_t size, size_t page, bool own);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  Control& control() const { return *reinterpret_cast<Control*>(base_); }
  Queue& queue(size_t receiver) const { return reinterpret_cast<Queue*>(base_ + queues_at())[receiver]; }
  char* slot(uint64_t step) const { return base_ + slots_at() + step % kSlots * kSlotBytes; }
  char* at(uint64_t place) const { return base_ + place; }
  // The place in the arena of this memory, or kNowhere.
  uint64_t place_of(const void* memory, size_t bytes) const;

  int file() const { return file_; }
  size_t page() const { return page_; }
  size_t arena_at() const { return slots_at() + round_up(kSlots * kSlotBytes, page_); }
  size_t end() const { return mapped_; }

 private:
  // The layout, without memory.
  Segment(size_t size, size_t page) : file_(-1), size_(size), page_(page), mapped_(0), base_(nullptr) {}

  size_t queues_at() const { return round_up(sizeof(Control), page_); }
  size_t slots_at() const { return queues_at() + round_up(size_ * sizeof(Queue), page_); }

  int file_;
  size_t size_;
  size_t page_;
  size_t mapped_;
  char* base_;
};

// The free and used places of a rank's own arena. The file grows with use: unused places cost nothing.
class Arena {
 public:
  explicit Arena(Segment segment) : segment_(std::move(segment)), top_(segment_.arena_at()) {}

  const Segment& segment() const { return segment_; }
  // kNowhere if the system has no more memory.
  uint64_t take(size_t bytes);
  void give_back(uint64_t place);
  // From now on no place is reused, because peers may still write to places that were in use.
  void keep_all();

 private:
  uint64_t take_free(size_t bytes);

  const Segment segment_;
  std::mutex mutex_;
  std::map<uint64_t, size_t> used_, free_; // sizes by place
  uint64_t top_;                           // the end of the reserved part
  bool keeps_all_ = false;
};

} // namespace shm
