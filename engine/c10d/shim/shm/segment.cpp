// Memory files, and the arena's allocation.

#include "segment.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <iterator>
#include <unistd.h>
#include <utility>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace shm;

namespace {

[[noreturn]] void refuse(const char* what) { throw std::runtime_error(std::string(what) + ": " + std::strerror(errno)); }

// The size of each rank's arena in the address space. Only used parts take memory. All ranks of a group may be in one
// process.
size_t range(size_t size) {
  constexpr size_t kAll = size_t{1} << 40, kMost = size_t{1} << 36;
  return std::min(kMost, kAll / size);
}

// A file that grows beyond the limit ends the process with SIGXFSZ.
size_t limited(size_t bytes, size_t page) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return bytes;
  return std::min<size_t>(bytes, limit.rlim_cur / page * page);
}

} // namespace

size_t shm::page_size() {
  const long bytes = ::sysconf(_SC_PAGESIZE);
  if (bytes <= 0) refuse("the size of a page");
  return static_cast<size_t>(bytes);
}

// The seal keeps every mapping readable for good: since the file cannot shrink, no address in it ends a reader with SIGBUS.
Segment Segment::make(size_t size, size_t page) {
  const int file = ::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) refuse("memfd_create");
  const size_t fixed = Segment(size, page).arena_at();
  const size_t bytes = limited(fixed + range(size), page);
  const auto refuse_file = [&](const char* what) {
    const int error = errno;
    ::close(file);
    errno = error;
    refuse(what);
  };
  if (bytes < fixed) errno = EFBIG, refuse_file("a limit of file sizes");
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) refuse_file("ftruncate of a memory file");
  if (::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) != 0) refuse_file("seals of a memory file");
  if (::fallocate(file, 0, 0, static_cast<off_t>(fixed)) != 0) refuse_file("reserving shared memory");
  try {
    return Segment(file, size, page, true);
  } catch (...) {
    ::close(file);
    throw;
  }
}

// A forked child that does not exec must not keep a group's memory.
Segment::Segment(int file, size_t size, size_t page, bool own) : Segment(size, page) {
  struct stat info {};
  if (::fstat(file, &info) != 0) refuse("fstat of a memory file");
  mapped_ = static_cast<size_t>(info.st_size);
  void* memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) refuse("mapping shared memory");
  base_ = static_cast<char*>(memory);
  (void)::madvise(memory, mapped_, MADV_DONTDUMP);
  (void)::madvise(memory, mapped_, MADV_DONTFORK);
  if (own) file_ = file;
  else ::close(file);
}

Segment::Segment(Segment&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      size_(other.size_),
      page_(other.page_),
      mapped_(other.mapped_),
      base_(std::exchange(other.base_, nullptr)) {}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, mapped_);
  if (file_ >= 0) ::close(file_);
}

uint64_t Segment::place_of(const void* memory, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(memory), base = reinterpret_cast<uintptr_t>(base_);
  if (address < base + arena_at() || address + bytes > base + mapped_) return kNowhere;
  return address - base;
}

uint64_t Arena::take(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), kBlock);
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t found = take_free(bytes);
  if (found != kNowhere) return found;
  if (bytes > segment_.end() - top_) return kNowhere;
  if (::fallocate(segment_.file(), 0, static_cast<off_t>(top_), static_cast<off_t>(bytes)) != 0) return kNowhere;
  const uint64_t place = std::exchange(top_, top_ + bytes);
  used_[place] = bytes;
  return place;
}

// The first free place that is large enough; the rest of it stays free.
uint64_t Arena::take_free(size_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [place, room] = *it;
    if (room < bytes) continue;
    free_.erase(it);
    if (room > bytes) free_[place + bytes] = room - bytes;
    used_[place] = bytes;
    return place;
  }
  return kNowhere;
}

void Arena::give_back(uint64_t place) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = used_.find(place);
  if (it == used_.end()) return;
  size_t bytes = it->second;
  used_.erase(it);
  if (keeps_all_) return;
  auto next = free_.lower_bound(place);
  if (next != free_.end() && place + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == place) {
      before->second += bytes;
      return;
    }
  }
  free_[place] = bytes;
}

void Arena::keep_all() {
  std::lock_guard<std::mutex> lock(mutex_);
  keeps_all_ = true;
  free_.clear();
}

// The texts of calls. The names of operations are those in src/collectives.rs, the names of dtypes are libtorch's.

namespace {

const char* type_name(uint8_t type) {
  static const char* const kNames[] = {"Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double",
                                       "ComplexHalf", "ComplexFloat", "ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16"};
  return type < std::size(kNames) ? kNames[type] : "another dtype";
}

const char* reduction_name(uint8_t reduction) {
  static const char* const kNames[] = {"Sum", "Avg", "Product", "Min", "Max", "BitAnd", "BitOr", "BitXor"};
  return reduction < std::size(kNames) ? kNames[reduction] : "another reduction";
}

std::string sizes(const Call& call) {
  std::string text = "[";
  for (size_t i = 0; i < std::min<size_t>(call.dims, Call::kSizes); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(call.sizes[i]);
  return text + (call.dims > Call::kSizes ? ", ...]" : "]");
}

} // namespace

std::string shm::describe_tensor(const Call& call) { return sizes(call) + " " + type_name(call.type); }

// The numbers are those of c10d::OpType.
std::string shm::describe(const Call& call) {
  const auto reduction = "(" + std::string(reduction_name(call.reduction)) + ")";
  const auto from = " from rank " + std::to_string(call.root), to = " to rank " + std::to_string(call.root);
  const auto of = " of " + describe_tensor(call);
  switch (call.op) {
    case 0: return "broadcast" + from + of;
    case 1: return "all_reduce" + reduction + of;
    case 3: return "reduce" + reduction + to + of;
    case 4: return "all_gather" + of;
    case 5: return "all_gather_into_tensor" + of;
    case 7: return "gather" + to + of;
    case 8: return "scatter" + from + of;
    case 9: return "reduce_scatter" + reduction + of;
    case 10: return "all_to_all_single of rows " + describe_tensor(call);
    case 15: return "barrier";
    case 16: return "reduce_scatter_tensor" + reduction + of;
    case 18: return "all_reduce" + reduction + of + " sparse";
    default: return "operation " + std::to_string(call.op) + of;
  }
}

std::string shm::group_ranks(const std::vector<std::pair<int, std::string>>& texts) {
  std::vector<std::pair<std::string, std::string>> groups; // texts with their ranks
  for (const auto& [rank, text] : texts) {
    auto same = std::find_if(groups.begin(), groups.end(), [&, &text = text](const auto& group) { return group.first == text; });
    if (same == groups.end()) same = groups.insert(groups.end(), {text, ""});
    same->second += (same->second.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::string all;
  for (const auto& [text, ranks] : groups)
    all += (all.empty() ? "" : "; ") + std::string(ranks.find(',') == std::string::npos ? "Rank " : "Ranks ") + ranks + ": " + text;
  return all;
}
