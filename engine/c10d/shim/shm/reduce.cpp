// Reductions in cache-sized tiles. The build compiles this file with full optimization, once for each vector unit of x86-64, of which the
// loader takes the best; on AArch64 once, for NEON, which all of its processors have. Not here: which rank combines what (collectives.cpp).

#include "reduce.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__)
#define FOR_EACH_VECTOR_UNIT __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_VECTOR_UNIT
#endif
#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

using shm::Reduction;
using shm::Type;

// The number of elements of a tile, whose partial result stays in the first-level cache.
constexpr size_t kTile = 1024;

struct Sum {
  template <class T>
  static INLINE T of(T a, T b) { return static_cast<T>(a + b); }
};
struct Product {
  template <class T>
  static INLINE T of(T a, T b) { return static_cast<T>(a * b); }
};
struct Min {
  template <class T>
  static INLINE T of(T a, T b) { return b < a ? b : a; }
};
struct Max {
  template <class T>
  static INLINE T of(T a, T b) { return a < b ? b : a; }
};
// For integers; the backend refuses floats.
struct BitAnd {
  template <class T>
  static INLINE T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(a & b);
    else return a;
  }
};
struct BitOr {
  template <class T>
  static INLINE T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(a | b);
    else return a;
  }
};
struct BitXor {
  template <class T>
  static INLINE T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(a ^ b);
    else return a;
  }
};

// ---- 16-bit floats

INLINE float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct BFloat16 {
  uint16_t bits;

  INLINE float widen() const { return from_bits(static_cast<uint32_t>(bits) << 16); }

  static INLINE BFloat16 round(float value) {
    const uint32_t x = to_bits(value);
    const uint32_t rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
    const bool nan = (x & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(nan ? 0x7fc0 : rounded)};
  }
};

struct Half {
  uint16_t bits;

  // The exponents differ by 112. Infinities and NaNs have the largest exponent in both; the multiplication also converts
  // numbers with the smallest exponent correctly.
  INLINE float widen() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t rest = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const uint32_t finite = to_bits(from_bits(rest) * from_bits(0x77800000));
    const uint32_t special = rest | 0x7f800000;
    return from_bits(sign | (rest >= 0x0f800000 ? special : finite));
  }

  // Adding a number whose last bit is the last bit of the result lets the processor round.
  static INLINE Half round(float value) {
    const uint32_t x = to_bits(value);
    const uint32_t sign = (x >> 16) & 0x8000, magnitude = x & 0x7fffffff;
    const uint32_t tiny = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t small = magnitude < 0x38800000 ? tiny : normal;
    return {static_cast<uint16_t>(sign | (magnitude >= 0x477ff000 ? large : small))};
  }
};

// ---- tiles: the first two sources, further sources, and the mean

template <class Op, class T>
INLINE void combine_two(T* out, const T* a, const T* b, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = Op::of(a[i], b[i]);
}

template <class T>
INLINE void divide(T* out, T by, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(out[i] / by);
}

template <class T>
struct Tiles {
  const T* const* sources;
  size_t n_sources;
  T* const* targets;
  size_t n_targets;
  size_t n;
  bool mean;
};

// The sources are combined along a binary tree, each node of which is split in the middle, rounded down: ((0 + (1 + 2)) + (3 + (4 + 5))) for
// six. It is the order in which virtual ranks are added up (crates/lockstep/src/virtual_ranks/tree.rs).

// The nodes that end with a source end with all that are on the way to it, so a walk over the sources needs only the ends of the open ones.
constexpr size_t kLevels = 16; // of a tree with kMostSources leaves
static_assert(shm::kMostSources == size_t{1} << (kLevels - 1));

// Calls `leaf(level, source)` for each source, whose value becomes part `level`, and `join(level, is_root)` after both halves of a node: parts
// `level` and `level + 1` become part `level`.
template <class Leaf, class Join>
INLINE void walk(size_t n_sources, Leaf leaf, Join join) {
  size_t ends[kLevels];
  size_t open = 0, level = 0;
  for (size_t begin = 0, end = n_sources; begin < n_sources; ++begin, end = open > 0 ? ends[open - 1] : begin) {
    for (; end - begin > 1; end = (begin + end) / 2) ends[open++] = end;
    leaf(level++, begin);
    for (; open > 0 && ends[open - 1] == begin + 1; --open, --level) join(level - 2, open == 1);
  }
}

template <class Op, class T>
INLINE void plain(const Tiles<T>& of) {
  T room[kLevels][kTile];
  const T* parts[kLevels];
  for (size_t at = 0; at < of.n; at += kTile) {
    const size_t n = std::min(kTile, of.n - at);
    T* out = of.targets[0] + at;
    if (of.n_sources == 1) std::memmove(out, of.sources[0] + at, n * sizeof(T));
    const auto leaf = [&](size_t level, size_t source) INLINE_LAMBDA { parts[level] = of.sources[source] + at; };
    const auto join = [&](size_t level, bool is_root) INLINE_LAMBDA {
      // The result may be in a source's memory: all are read by then.
      T* sum = is_root ? out : room[level];
      combine_two<Op>(sum, parts[level], parts[level + 1], n);
      parts[level] = sum;
    };
    walk(of.n_sources, leaf, join);
    if (of.mean) divide(out, static_cast<T>(of.n_sources), n);
    for (size_t t = 1; t < of.n_targets; ++t)
      if (of.targets[t] + at != out) std::memcpy(of.targets[t] + at, out, n * sizeof(T));
  }
}

template <class Op, class T>
INLINE void widened(const Tiles<T>& of) {
  float room[kLevels][kTile];
  T rounded[kTile];
  for (size_t at = 0; at < of.n; at += kTile) {
    const size_t n = std::min(kTile, of.n - at);
    const auto leaf = [&](size_t level, size_t source) INLINE_LAMBDA {
      for (size_t i = 0; i < n; ++i) room[level][i] = of.sources[source][at + i].widen();
    };
    const auto join = [&](size_t level, bool) INLINE_LAMBDA { combine_two<Op>(room[level], room[level], room[level + 1], n); };
    walk(of.n_sources, leaf, join);
    if (of.mean) divide(room[0], static_cast<float>(of.n_sources), n);
    for (size_t i = 0; i < n; ++i) rounded[i] = T::round(room[0][i]);
    for (size_t t = 0; t < of.n_targets; ++t) std::memcpy(of.targets[t] + at, rounded, n * sizeof(T));
  }
}

#define KERNEL(name, how, T)                                      \
  FOR_EACH_VECTOR_UNIT void name##_sum(const Tiles<T>& of) { how<Sum>(of); }         \
  FOR_EACH_VECTOR_UNIT void name##_product(const Tiles<T>& of) { how<Product>(of); } \
  FOR_EACH_VECTOR_UNIT void name##_min(const Tiles<T>& of) { how<Min>(of); }         \
  FOR_EACH_VECTOR_UNIT void name##_max(const Tiles<T>& of) { how<Max>(of); }         \
  FOR_EACH_VECTOR_UNIT void name##_and(const Tiles<T>& of) { how<BitAnd>(of); }      \
  FOR_EACH_VECTOR_UNIT void name##_or(const Tiles<T>& of) { how<BitOr>(of); }        \
  FOR_EACH_VECTOR_UNIT void name##_xor(const Tiles<T>& of) { how<BitXor>(of); }      \
  void name(Reduction op, const Tiles<T>& of) {                   \
    switch (op) {                                                 \
      case Reduction::Sum:                                        \
      case Reduction::Avg: return name##_sum(of);                 \
      case Reduction::Product: return name##_product(of);         \
      case Reduction::Min: return name##_min(of);                 \
      case Reduction::Max: return name##_max(of);                 \
      case Reduction::BitAnd: return name##_and(of);              \
      case Reduction::BitOr: return name##_or(of);                \
      case Reduction::BitXor: return name##_xor(of);              \
    }                                                             \
  }

KERNEL(u8, plain, uint8_t)
KERNEL(i8, plain, int8_t)
KERNEL(i32, plain, int32_t)
KERNEL(i64, plain, int64_t)
KERNEL(f32, plain, float)
KERNEL(f64, plain, double)
KERNEL(bf16, widened, BFloat16)
KERNEL(f16, widened, Half)

template <class T>
Tiles<T> tiles(const void* const* sources, size_t n_sources, void* const* targets, size_t n_targets, size_t n, Reduction op) {
  return {reinterpret_cast<const T* const*>(sources), n_sources, reinterpret_cast<T* const*>(targets), n_targets, n,
          op == Reduction::Avg};
}

} // namespace

bool shm::reduces(uint8_t type) noexcept {
  switch (static_cast<Type>(type)) {
    case Type::U8: case Type::I8: case Type::I32: case Type::I64:
    case Type::F16: case Type::F32: case Type::F64: case Type::BF16: return true;
  }
  return false;
}

size_t shm::item_size(Type type) noexcept {
  switch (type) {
    case Type::U8: case Type::I8: return 1;
    case Type::F16: case Type::BF16: return 2;
    case Type::I32: case Type::F32: return 4;
    case Type::I64: case Type::F64: return 8;
  }
  return 1;
}

void shm::combine(Type type, Reduction op, const void* const* sources, size_t n_sources, void* const* targets,
                  size_t n_targets, size_t n) noexcept {
  const auto run = [&](auto kernel, auto item) { kernel(op, tiles<decltype(item)>(sources, n_sources, targets, n_targets, n, op)); };
  switch (type) {
    case Type::U8: return run(u8, uint8_t());
    case Type::I8: return run(i8, int8_t());
    case Type::I32: return run(i32, int32_t());
    case Type::I64: return run(i64, int64_t());
    case Type::F16: return run(f16, Half());
    case Type::F32: return run(f32, float());
    case Type::F64: return run(f64, double());
    case Type::BF16: return run(bf16, BFloat16());
  }
}
