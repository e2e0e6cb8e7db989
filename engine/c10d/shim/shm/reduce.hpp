// The arithmetic of reductions, on plain memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shm {

// The numbers of c10::ScalarType, for the types that reductions support.
enum class Type : uint8_t { U8 = 0, I8 = 1, I32 = 3, I64 = 4, F16 = 5, F32 = 6, F64 = 7, BF16 = 15 };

// The numbers of c10d::ReduceOp.
enum class Reduction : uint8_t { Sum = 0, Avg = 1, Product = 2, Min = 3, Max = 4, BitAnd = 5, BitOr = 6, BitXor = 7 };

bool reduces(uint8_t type) noexcept;
size_t item_size(Type type) noexcept;

// More than a host has ranks: a tree over the sources has no more levels than there is room for.
constexpr size_t kMostSources = size_t{1} << 15;

// Combines `n` elements of each source, along a binary tree over the sources, and writes the result to every target. A target may be one
// of the sources, but must not overlap one otherwise. bfloat16 and float16 are combined in float32 and rounded once, to the
// nearest even number. Avg divides the sum by the number of sources.
void combine(Type type, Reduction op, const void* const* sources, size_t n_sources, void* const* targets, size_t n_targets,
             size_t n) noexcept;

} // namespace shm
