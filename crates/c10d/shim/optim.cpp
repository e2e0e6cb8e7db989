// The fused optimizer kernels. tch does not bind them, because its generator skips operators without a return value.

#include "status.hpp"
#include "tensors.hpp"

#include <algorithm>
#include <initializer_list>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

using namespace shim;

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
  const char *any = nullptr, *changed = nullptr; // how far those so far reach
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
