// Settings of libtorch's kernels that tch lacks: determinism, vector instructions, channels-last memory, page-locked memory, a GPU's peak memory,
// and the number of threads for one thread's operations.

#include "autocast.hpp"
#include "status.hpp"
#include "tensors.hpp"

#include <algorithm>
#include <dlfcn.h>
#include <initializer_list>
#include <string>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Layout.h>

using namespace shim;

extern "C" {

// As torch.use_deterministic_algorithms(on); also keeps cuDNN from choosing kernels by their times.
Status lc_use_deterministic_algorithms(bool on) noexcept {
  return guard([&] {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
    if (on) at::globalContext().setBenchmarkCuDNN(false);
  });
}

// As torch.backends.cpu.get_cpu_capability(); empty if libtorch fails. The text lives as long as the process.
const char* lc_cpu_capability() noexcept {
  static const std::string name = [] {
    std::string found;
    (void)guard([&] { found = at::get_cpu_capability(); });
    return found;
  }();
  return name.c_str();
}

bool lc_is_channels_last(const at::Tensor* tensor) noexcept {
  bool is = false;
  (void)guard([&] { is = tensor->dim() == 4 && tensor->is_contiguous(at::MemoryFormat::ChannelsLast); });
  return is;
}

Status lc_channels_last(const at::Tensor* tensor, at::Tensor** out) noexcept {
  return guard([&] { *out = new at::Tensor(tensor->contiguous(at::MemoryFormat::ChannelsLast)); });
}

// In place, as in torch.nn.Module.to(memory_format=...): all handles to the tensor see the new memory.
Status lc_to_channels_last(at::Tensor* tensor) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    tensor->set_data(tensor->contiguous(at::MemoryFormat::ChannelsLast));
  });
}

Status lc_pin_memory(const at::Tensor* tensor, at::Tensor** out) noexcept {
  return guard([&] { *out = new at::Tensor(tensor->pin_memory()); });
}

// at::set_num_threads(1) would also apply to all threads that libtorch does not know yet. OpenMP and MKL have a number for each
// thread, which must be set in libtorch's copies of the two.
Status lc_one_thread_here() noexcept {
  return guard([] {
    (void)at::get_num_threads(); // the first call on a thread sets the thread's number
    void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return;
    using Set = void (*)(int);
    if (const auto set = reinterpret_cast<Set>(dlsym(library, "omp_set_num_threads"))) set(1);
    using SetLocal = int (*)(int);
    if (const auto set = reinterpret_cast<SetLocal>(dlsym(library, "MKL_Set_Num_Threads_Local"))) (void)set(1);
    dlclose(library);
  });
}

// The peak of the bytes of tensors on a GPU since the last reset.
Status lc_peak_memory(int32_t device, int64_t* bytes) noexcept {
  return guard([&] {
    const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    *bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  });
}

Status lc_reset_peak_memory(int32_t device) noexcept {
  return guard([&] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

} // extern "C"

// The properties of a tensor that src/tensors.rs checks before a backend gets its address.

namespace {

struct TensorFacts {
  bool defined;
  bool strided;    // and not a list of tensors
  bool in_storage; // its memory holds all its values, unmodified
  bool contiguous;
  int32_t kind; // c10::ScalarType
  int32_t device_type; // c10::DeviceType
  int32_t device_index;
  int64_t item_size;
  int64_t numel;
  uint64_t address;
};

bool holds_all(const at::Tensor& t) {
  if (!t.has_storage() || t.is_conj() || t.is_neg() || t._is_zerotensor()) return false;
  const auto last = static_cast<size_t>(t.storage_offset() + t.numel()) * t.itemsize();
  return t.numel() == 0 || !t.is_contiguous() || last <= t.storage().nbytes();
}

} // namespace

extern "C" {

Status lc_tensor_facts(const at::Tensor* tensor, TensorFacts* out) noexcept {
  return guard([&] {
    const auto& t = *tensor;
    *out = {};
    if (!(out->defined = t.defined())) return;
    out->kind = static_cast<int32_t>(t.scalar_type());
    out->device_type = static_cast<int32_t>(t.device().type());
    out->device_index = t.device().index();
    out->item_size = static_cast<int64_t>(t.itemsize());
    if (!(out->strided = t.layout() == at::kStrided && !t.is_nested())) return;
    out->numel = t.numel();
    if (!(out->in_storage = holds_all(t))) return;
    out->contiguous = t.is_contiguous();
    out->address = reinterpret_cast<uint64_t>(t.const_data_ptr());
  });
}

} // extern "C"

// The fused optimizer kernels. tch does not bind them, because its generator skips operators without a return value.

namespace {

struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize, is_first_step;
};

struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled, amsgrad, maximize;
};

// Compares strides, except for dimensions of size 1: these may have any stride, and autograd's do.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

void check_dense(const std::vector<at::Tensor>& tensors, const char* what) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& t = tensors[i];
    const bool whole = t.defined() && t.layout() == at::kStrided && t.has_storage() && !t._is_zerotensor() && !t.is_neg();
    TORCH_CHECK_VALUE(whole, "the ", what, " of parameter ", i, " is undefined, sparse or a lazy view");
  }
}

// Kernels on the CPU divide the work among threads, so no memory that is written may belong to two tensors.
void check_apart(std::vector<at::Tensor> written, const std::vector<at::Tensor>& read) {
  struct Run {
    const char *begin, *end;
    bool written;
  };
  std::vector<Run> runs;
  const auto add = [&](const at::Tensor& t, bool is_written) {
    if (!t.device().is_cpu() || t.numel() == 0) return;
    const auto* begin = static_cast<const char*>(t.const_data_ptr());
    runs.push_back({begin, begin + t.nbytes(), is_written});
  };
  for (const auto& t : written) add(t, true);
  for (const auto& t : read) add(t, false);
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  const char *any = nullptr, *changed = nullptr; // the ends of the runs so far
  for (const auto& run : runs) {
    TORCH_CHECK_VALUE(run.begin >= (run.written ? any : changed), "two tensors of the step share memory: copy one");
    any = std::max(any, run.end);
    if (run.written) changed = std::max(changed, run.end);
  }
}

std::vector<at::Tensor> joined(std::initializer_list<const std::vector<at::Tensor>*> lists) {
  std::vector<at::Tensor> all;
  for (const auto* list : lists) all.insert(all.end(), list->begin(), list->end());
  return all;
}

// The CPU kernels iterate over memory from the first element, without checking strides or bounds.
void check_params(const std::vector<at::Tensor>& params) {
  check_dense(params, "tensor");
  for (const auto& param : params) {
    TORCH_CHECK_VALUE(param.layout() == at::kStrided && param.is_non_overlapping_and_dense(),
                      "a parameter has gaps or overlaps in memory");
    TORCH_CHECK_VALUE(param.scalar_type() == params[0].scalar_type() && param.device() == params[0].device(),
                      "one call takes parameters of one dtype and device, not of ", params[0].scalar_type(), " on ",
                      params[0].device(), " and ", param.scalar_type(), " on ", param.device());
  }
}

void check_like(const std::vector<at::Tensor>& params, const std::vector<at::Tensor>& list, const char* what) {
  check_dense(list, what);
  for (size_t i = 0; i < list.size(); ++i) {
    const auto &param = params[i], &tensor = list[i];
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.scalar_type() == param.scalar_type() &&
                          tensor.device() == param.device() && same_layout(tensor, param),
                      "the ", what, " of parameter ", i, " is not laid out as it: sizes ", tensor.sizes(), " of ",
                      tensor.scalar_type(), " on ", tensor.device(), " against ", param.sizes(), " of ",
                      param.scalar_type(), " on ", param.device());
  }
}

void check_steps(const std::vector<at::Tensor>& params, const std::vector<at::Tensor>& steps) {
  check_dense(steps, "step count");
  for (size_t i = 0; i < steps.size(); ++i)
    TORCH_CHECK_VALUE(steps[i].scalar_type() == at::kFloat && steps[i].numel() == 1 &&
                          steps[i].device() == params[i].device(),
                      "the step count of parameter ", i, " is not one float on the parameter's device");
}

} // namespace

extern "C" {

// `buffers` has n entries, or none without momentum.
Status lc_fused_sgd(const at::Tensor* const* params, const at::Tensor* const* grads, size_t n,
                    const at::Tensor* const* buffers, size_t n_buffers, const SgdStep* step) noexcept {
  return guard([&] {
    if (n == 0) return;
    at::NoGradGuard no_grad;
    const auto p = to_tensors(params, n), g = to_tensors(grads, n), b = to_tensors(buffers, n_buffers);
    check_params(p);
    check_like(p, g, "gradient");
    check_like(p, b, "momentum buffer");
    check_apart(joined({&p, &b}), g);
    at::_fused_sgd_(p, g, b, step->weight_decay, step->momentum, step->lr, step->dampening, step->nesterov,
                    step->maximize, step->is_first_step);
  });
}

// `max_squares` has n entries with amsgrad, otherwise none. Increments the step counts first, as torch/optim/adam.py
// does.
Status lc_fused_adam(const at::Tensor* const* params, const at::Tensor* const* grads, const at::Tensor* const* averages,
                     const at::Tensor* const* squares, const at::Tensor* const* steps, size_t n,
                     const at::Tensor* const* max_squares, size_t n_max, const AdamStep* step) noexcept {
  return guard([&] {
    if (n == 0) return;
    at::NoGradGuard no_grad;
    const auto p = to_tensors(params, n), g = to_tensors(grads, n), m = to_tensors(averages, n),
               v = to_tensors(squares, n), t = to_tensors(steps, n), w = to_tensors(max_squares, n_max);
    check_params(p);
    check_like(p, g, "gradient");
    check_like(p, m, "average");
    check_like(p, v, "average of squares");
    check_like(p, w, "largest average of squares");
    check_steps(p, t);
    check_apart(joined({&p, &m, &v, &w, &t}), g);
    at::_foreach_add_(t, 1);
    const auto run = [&](auto&& kernel) {
      kernel(p, g, m, v, w, t, step->lr, step->beta1, step->beta2, step->weight_decay, step->eps, step->amsgrad,
             step->maximize);
    };
    if (step->decoupled)
      run([](auto&&... args) { at::_fused_adamw_(args...); });
    else
      run([](auto&&... args) { at::_fused_adam_(args...); });
  });
}

} // extern "C"

// Mixed precision: autocast for a thread, and the kernel that unscales gradients, which tch's generator skips.

extern "C" {

Status lc_autocast_enter(bool cuda, bool half, bool enabled, AutocastState* before) noexcept {
  return guard([&] {
    *before = enter_autocast({static_cast<int32_t>(half ? at::kHalf : at::kBFloat16), enabled, cuda});
  });
}

Status lc_autocast_leave(const AutocastState* before) noexcept {
  return guard([&] { leave_autocast(*before); });
}

// Multiplies the gradients by `inverse_scale` in place, and sets `found_inf` to 1 if one of them is not finite. The gradients have
// one dtype; all tensors are on one device; `found_inf` and `inverse_scale` are one float each.
Status lc_unscale(const at::Tensor* const* grads, size_t n, const at::Tensor* found_inf,
                  const at::Tensor* inverse_scale) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    const auto g = to_tensors(grads, n);
    check_dense(g, "gradient");
    check_apart(g, {*inverse_scale});
    at::Tensor found = *found_inf;
    at::_amp_foreach_non_finite_check_and_unscale_(g, found, *inverse_scale);
  });
}

} // extern "C"
