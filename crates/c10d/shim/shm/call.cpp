// The texts of calls. Names of operations are those of src/collectives.rs, names of dtypes libtorch's.

#include "segment.hpp"

#include <algorithm>
#include <iterator>

using namespace shm;

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
