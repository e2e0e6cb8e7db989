// The steps of every collective. In each step a rank writes a chunk to its slot, tells the others, and reads theirs; it may be
// kSlots steps ahead of the slowest reader, so chunks overlap.
//
// Sums are always combined along one tree over the ranks (reduce.cpp), whichever rank computes them, so all ranks get the same bits.

#include "collectives.hpp"

using namespace shm;

// ---- steps

bool Collective::can_begin() const {
  const uint64_t step = next();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && members_.control(peer).done.load() + kSlots <= step) return false;
  return true;
}

void Collective::begin(const Deadline& deadline, Patience patience) {
  deadline_ = &deadline;
  patience_ = patience;
  first_ = reserve();
  members_.own().calls[first_ % kSlots] = call_;
  write_first(slot(rank(), first_));
  post();
}

bool Collective::all_have_begun() const {
  for (int peer = 0; peer < size(); ++peer)
    if (members_.control(peer).posted.load() <= first_) return false;
  return true;
}

void Collective::finish(const Deadline& deadline, Patience patience) {
  deadline_ = &deadline;
  patience_ = patience;
  for (int peer = 0; peer < size(); ++peer)
    if (sees(peer)) wait_posted(peer, first_);
  try {
    compare();
    check();
  } catch (...) {
    // If all ranks compare, all fail here, and the next step of each is its next call.
    done(first_);
    throw;
  }
  complete();
}

void Collective::run(Collective& other) const {
  other.begin(*deadline_, patience_);
  other.finish(*deadline_, patience_);
}

uint64_t Collective::reserve() {
  const uint64_t step = next();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto& done = members_.control(peer).done;
    wait(peer, [&] { return done.load() + kSlots > step; });
  }
  return step;
}

void Collective::post() {
  members_.show_core();
  members_.own().posted.store(next() + 1);
  members_.ring_steps();
}

void Collective::done(uint64_t step) {
  members_.own().done.store(step + 1);
  members_.ring_steps();
}

void Collective::wait_posted(int peer, uint64_t step) {
  const auto& posted = members_.control(peer).posted;
  wait(peer, [&] { return posted.load() > step; });
}

void Collective::compare() const {
  const auto theirs = [&](int peer) -> const Call& { return members_.control(peer).calls[first_ % kSlots]; };
  for (int peer = 0; peer < size(); ++peer) {
    if (!sees(peer) || (compares_ ? call_.equals(theirs(peer)) : call_.agrees_with(theirs(peer)))) continue;
    std::vector<std::pair<int, std::string>> calls;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != this->rank() && !sees(rank)) continue;
      Call call = theirs(rank);
      if (call.root >= 0 && call.root < size()) call.root = members_.name(call.root);
      calls.emplace_back(members_.name(rank), describe(call));
    }
    throw Mismatch("Detected mismatch between collectives. " + group_ranks(calls));
  }
}

// ---- exchanges

bool Exchange::reads_from(int from) const {
  if (from == rank()) return false;
  return (plan_.only_from < 0 || plan_.only_from == from) && (plan_.only_to < 0 || plan_.only_to == rank());
}

size_t Exchange::piece() const {
  return plan_.shared ? kSlotBytes : kSlotBytes / static_cast<size_t>(size()) / kLine * kLine;
}

void Exchange::write(char* slot, size_t step) {
  const size_t at = step * piece();
  for (size_t to = 0; to < plan_.give.size(); ++to) {
    const Block& block = plan_.give[to];
    if (block.bytes <= at || (!plan_.shared && static_cast<int>(to) == rank())) continue;
    std::memcpy(slot + (plan_.shared ? 0 : to * piece()), block.memory + at, std::min(piece(), block.bytes - at));
  }
}

// Reads a step after writing the next one, so peers rarely wait.
void Exchange::exchange(uint64_t first) {
  for (size_t step = 1; step < steps(); ++step) {
    write(slot(rank(), reserve()), step);
    post();
    read(step - 1, first + step - 1);
    done(first + step - 1);
  }
  read(steps() - 1, first + steps() - 1);
  done(first + steps() - 1);
}

const char* Exchange::chunk(int from, uint64_t step) const {
  return slot(from, step) + (plan_.shared ? 0 : static_cast<size_t>(rank()) * piece());
}

void Exchange::read(size_t step, uint64_t number) {
  for (int from = 0; from < size(); ++from)
    if (reads_from(from)) wait_posted(from, number);
  if (plan_.combines) return combine_chunk(step, number);
  const size_t at = step * piece();
  for (size_t from = 0; from < plan_.take.size(); ++from) {
    const Block& block = plan_.take[from];
    if (block.bytes <= at) continue;
    const bool own = static_cast<int>(from) == rank();
    const char* source = own ? plan_.give[plan_.shared ? 0 : from].memory + at : chunk(static_cast<int>(from), number);
    if (source != block.memory + at) std::memcpy(block.memory + at, source, std::min(piece(), block.bytes - at));
  }
}

void Exchange::combine_chunk(size_t step, uint64_t number) {
  const size_t at = step * piece();
  if (plan_.combined.bytes <= at) return;
  std::vector<const void*> sources;
  for (int from = 0; from < size(); ++from) {
    const auto& own = plan_.give[plan_.shared ? 0 : static_cast<size_t>(rank())];
    sources.push_back(from == rank() ? own.memory + at : chunk(from, number));
  }
  void* target = plan_.combined.memory + at;
  const auto type = static_cast<Type>(call_.type);
  const size_t n = std::min(piece(), plan_.combined.bytes - at) / item_size(type);
  combine(type, static_cast<Reduction>(call_.reduction), sources.data(), sources.size(), &target, 1, n);
}

// ---- all to all

const int64_t* AllToAll::rows(int of) const { return reinterpret_cast<const int64_t*>(slot(of, first_)); }

void AllToAll::write_first(char* slot) {
  const size_t bytes = sends_.size() * sizeof(int64_t);
  std::memcpy(slot, sends_.data(), bytes);
  std::memcpy(slot + bytes, receives_.data(), bytes);
}

void AllToAll::check() {
  const int n = size();
  int64_t most = 0;
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      const int64_t sent = rows(from)[to], expected = rows(to)[n + from];
      most = std::max(most, sent);
      if (sent != expected)
        throw Mismatch("Detected mismatch between collectives. " + describe(call_) + ": Rank " + std::to_string(from) + " sends " +
                       std::to_string(sent) + " rows to Rank " + std::to_string(to) + ", which expects " + std::to_string(expected));
    }
  }
  plan_.bytes = static_cast<size_t>(most) * call_.bytes;
}

void AllToAll::complete() {
  done(first_);
  const uint64_t step = reserve();
  write(slot(rank(), step), 0);
  post();
  exchange(step);
}

// ---- chains

void Chain::complete() {
  Exchange::complete();
  while (const auto next = next_()) run(*next);
}

// ---- large sums

// Two steps of synchronization cost more than reading all of a short tensor from every rank.
size_t shm::largest_for_one_step(int size) { return std::max<size_t>(kBlock, 128 * 1024 / static_cast<size_t>(size)); }

void LargeAllReduce::complete() { is_in_place() ? in_place() : through_slots(); }

bool LargeAllReduce::is_in_place() const {
  for (int peer = 0; peer < size(); ++peer)
    if (members_.control(peer).calls[first_ % kSlots].place == kNowhere) return false;
  return true;
}

// Every rank takes the next tile until all are taken, so a late rank does less.
void LargeAllReduce::in_place() {
  const size_t tiles = (tensor_.bytes + tile_bytes() - 1) / tile_bytes();
  const uint64_t base = members_.tiles;
  members_.tiles += tiles;
  std::vector<char*> tensors;
  for (int peer = 0; peer < size(); ++peer)
    tensors.push_back(members_.of(peer).at(members_.control(peer).calls[first_ % kSlots].place));
  combine_tiles(base, tiles, tensors);
  const auto& finished = members_.control(0).finished;
  wait_any([&] { return finished.load() >= base + tiles; });
  done(first_);
}

size_t LargeAllReduce::tile_bytes() const { return largest_for_one_step(size()) / kBlock * kBlock; }

void LargeAllReduce::combine_tiles(uint64_t base, size_t tiles, const std::vector<char*>& tensors) {
  auto& shared = members_.control(0);
  auto& combining = members_.own().combining;
  uint64_t next = shared.claimed.load();
  combining.store(1);
  while (next < base + tiles) {
    if (!shared.claimed.compare_exchange_weak(next, next + 1)) continue;
    combine_tile(next - base, tensors);
    shared.finished.fetch_add(1);
  }
  combining.store(0);
  members_.ring_steps();
}

void LargeAllReduce::combine_tile(size_t tile, const std::vector<char*>& tensors) {
  const size_t at = tile * tile_bytes();
  std::vector<void*> targets;
  for (char* tensor : tensors) targets.push_back(tensor + at);
  const std::vector<const void*> sources(targets.begin(), targets.end());
  const auto type = static_cast<Type>(call_.type);
  const size_t n = std::min(tile_bytes(), tensor_.bytes - at) / item_size(type);
  combine(type, static_cast<Reduction>(call_.reduction), sources.data(), sources.size(), targets.data(), targets.size(), n);
}

// Each rank combines one part of every chunk. Three chunks are under way at a time: one is written, one combined, one read.
void LargeAllReduce::through_slots() {
  done(first_);
  const size_t chunks = (tensor_.bytes + kSlotBytes - 1) / kSlotBytes;
  const uint64_t first = first_ + 1;
  for (size_t chunk = 0; chunk < chunks + 2; ++chunk) {
    if (chunk < chunks) give_chunk(chunk);
    if (chunk >= 1 && chunk - 1 < chunks) combine_part(chunk - 1, first + chunk - 1);
    if (chunk >= 2) take_chunk(chunk - 2, first + chunk - 2);
  }
}

Block LargeAllReduce::part(size_t chunk, int of) const {
  const size_t bytes = std::min(kSlotBytes, tensor_.bytes - chunk * kSlotBytes);
  const size_t each = round_up((bytes + static_cast<size_t>(size()) - 1) / static_cast<size_t>(size()), kLine);
  const size_t begin = std::min(bytes, each * static_cast<size_t>(of)), end = std::min(bytes, begin + each);
  return {tensor_.memory + chunk * kSlotBytes + begin, end - begin};
}

void LargeAllReduce::give_chunk(size_t chunk) {
  char* slot = this->slot(rank(), reserve());
  const char* begin = tensor_.memory + chunk * kSlotBytes;
  for (int to = 0; to < size(); ++to) {
    const Block block = part(chunk, to);
    if (to != rank()) std::memcpy(slot + (block.memory - begin), block.memory, block.bytes);
  }
  post();
}

void LargeAllReduce::combine_part(size_t chunk, uint64_t step) {
  const Block mine = part(chunk, rank());
  const size_t at = static_cast<size_t>(mine.memory - (tensor_.memory + chunk * kSlotBytes));
  std::vector<const void*> sources;
  for (int from = 0; from < size(); ++from) {
    wait_posted(from, step);
    sources.push_back(from == rank() ? mine.memory : slot(from, step) + at);
  }
  void* const targets[] = {mine.memory, slot(rank(), step) + at};
  const auto type = static_cast<Type>(call_.type);
  combine(type, static_cast<Reduction>(call_.reduction), sources.data(), sources.size(), targets, 2, mine.bytes / item_size(type));
  members_.own().reduced.store(step + 1);
  members_.ring_steps();
}

void LargeAllReduce::take_chunk(size_t chunk, uint64_t step) {
  const char* begin = tensor_.memory + chunk * kSlotBytes;
  for (int from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    const auto& reduced = members_.control(from).reduced;
    wait(from, [&] { return reduced.load() > step; });
    const Block block = part(chunk, from);
    std::memcpy(block.memory, slot(from, step) + (block.memory - begin), block.bytes);
  }
  done(step);
}
