// Collectives over slots and buckets in shared memory. All ranks of a group run the same collectives in the same order, one at
// a time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "members.hpp"
#include "reduce.hpp"

namespace shm {

// A block of this rank's own memory.
struct Block {
  char* memory = nullptr;
  size_t bytes = 0;
};

// One collective of this rank.
class Collective {
 public:
  Collective(Members& members, Call call, bool compares) : members_(members), call_(call), compares_(compares) {}
  virtual ~Collective() = default;

  // Returns true if `begin` would not wait.
  bool can_begin() const;
  // Takes the next step and tells the peers.
  void begin(const Deadline& deadline, Patience patience);
  // Returns true if `finish` waits at most for peers that are in the same collective.
  bool all_have_begun() const;
  // Completes the collective.
  void finish(const Deadline& deadline, Patience patience);
  bool compares() const { return compares_; }

 protected:
  // Further comparisons, after that of the calls.
  virtual void check() {}
  // The chunk of the first step.
  virtual void write_first(char* slot) { (void)slot; }
  // Returns true if this rank reads what `rank` writes.
  virtual bool reads_from(int rank) const = 0;
  // The rest of the collective, after the first step's comparison.
  virtual void complete() = 0;

  // Reserves the next step's slot, and publishes it.
  uint64_t reserve();
  void post();
  void done(uint64_t step);
  void wait_posted(int rank, uint64_t step);
  void compare() const;
  // Returns true if this rank needs to see the call of `rank`.
  bool sees(int rank) const { return compares_ || reads_from(rank); }

  int rank() const { return members_.rank(); }
  int size() const { return members_.size(); }
  char* slot(int rank, uint64_t step) const { return members_.of(rank).slot(step); }
  template <class Reached>
  void wait(int on, Reached&& reached) { members_.wait(on, reached, *deadline_, patience_); }
  template <class Reached>
  void wait_any(Reached&& reached) { members_.wait_any(reached, *deadline_, patience_); }
  // Runs another collective, up to this one's deadline.
  void run(Collective& other) const;

  Members& members_;
  Call call_;
  const bool compares_;
  uint64_t first_ = 0; // the first step's number

 private:
  // Relaxed: only this rank writes it, and the executor's lock orders the threads that do.
  uint64_t next() const { return members_.own().posted.load(std::memory_order_relaxed); }

  const Deadline* deadline_ = nullptr;
  Patience patience_ = Patience::Spin;
};

// Every rank may have one block for all its peers or one for each; every reader copies or combines the blocks that it gets.
class Exchange : public Collective {
 public:
  struct Plan {
    bool shared = true;             // all peers read the same block, `give[0]`
    std::vector<Block> give;        // by peer; empty if this rank gives nothing
    std::vector<Block> take;        // by peer; empty if this rank only combines or reads nothing
    Block combined;                 // where the combination of all ranks' blocks goes
    bool combines = false;
    size_t bytes = 0;               // of the largest block of any rank
    int only_from = -1;             // the only rank that gives, if there is one
    int only_to = -1;               // the only rank that reads, if there is one
  };

  Exchange(Members& members, Call call, bool compares, Plan plan)
      : Collective(members, call, compares), plan_(std::move(plan)) {}

 protected:
  void write_first(char* slot) override { write(slot, 0); }
  bool reads_from(int rank) const override;
  void complete() override { exchange(first_); }

  // The maximum bytes of a block in one step.
  size_t piece() const;
  size_t steps() const { return std::max<size_t>(1, (plan_.bytes + piece() - 1) / piece()); }
  void write(char* slot, size_t step);
  void read(size_t step, uint64_t number);
  // Where a peer's chunk for this rank is.
  const char* chunk(int from, uint64_t step) const;
  // Exchanges all blocks; `first` is the step of their first chunks, which have been posted.
  void exchange(uint64_t first);

  Plan plan_;

 private:
  void combine_chunk(size_t step, uint64_t number);
};

// All ranks first learn how many rows each rank sends to each, then exchange them.
class AllToAll : public Exchange {
 public:
  // `sends` and `receives` are numbers of rows by peer, of `call.bytes` bytes each.
  AllToAll(Members& members, Call call, bool compares, Plan plan, std::vector<int64_t> sends, std::vector<int64_t> receives)
      : Exchange(members, call, compares, std::move(plan)), sends_(std::move(sends)), receives_(std::move(receives)) {}

 protected:
  void write_first(char* slot) override;
  void check() override;
  bool reads_from(int) const override { return true; }
  void complete() override;

 private:
  const int64_t* rows(int rank) const;
  std::vector<int64_t> sends_, receives_;
};

// An exchange, followed by further collectives. Each is created when the previous one has ended, because its sizes depend on
// that one's result.
class Chain : public Exchange {
 public:
  // Returns null after the last one.
  using Next = std::function<std::unique_ptr<Collective>()>;

  Chain(Members& members, Call call, bool compares, Plan first, Next next)
      : Exchange(members, call, compares, std::move(first)), next_(std::move(next)) {}

 protected:
  void complete() override;

 private:
  const Next next_;
};

// A sum of tensors that are too large for one slot: in place if all tensors are in shared memory, otherwise chunk by chunk.
class LargeAllReduce : public Collective {
 public:
  LargeAllReduce(Members& members, Call call, bool compares, Block tensor)
      : Collective(members, call, compares), tensor_(tensor) {}

 protected:
  bool reads_from(int) const override { return true; }
  void complete() override;

 private:
  bool is_in_place() const;
  void in_place();
  size_t tile_bytes() const;
  void combine_tiles(uint64_t base, size_t tiles, const std::vector<char*>& tensors);
  void combine_tile(size_t tile, const std::vector<char*>& tensors);

  void through_slots();
  void give_chunk(size_t chunk);
  void combine_part(size_t chunk, uint64_t step);
  void take_chunk(size_t chunk, uint64_t step);
  // The part of a chunk that `rank` combines.
  Block part(size_t chunk, int rank) const;

  Block tensor_;
};

// The largest tensor whose sum every rank computes itself.
size_t largest_for_one_step(int size);

} // namespace shm
