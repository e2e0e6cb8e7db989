// Batch normalization over the samples of all ranks, as an autograd function. PyTorch implements it in Python, in
// torch/nn/modules/_functions.py. Its kernels there exist only for CUDA; the kernels used here are those of ordinary
// batch norm, for all devices.

#include "shim.hpp"

#include <torch/csrc/autograd/custom_function.h>

using namespace shim;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Over all ranks, in double precision and of shape [channels], except for the count.
struct Statistics {
  at::Tensor mean, var;
  double count;
};

at::Tensor dense(const at::Tensor& tensor) { return tensor.contiguous(tensor.suggest_memory_format()); }

at::Tensor as(const at::Tensor& statistic, const at::Tensor& input) {
  const bool half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  return statistic.to(half ? at::kFloat : input.scalar_type());
}

// Mean, biased variance and count of this rank's samples, concatenated: [2 * channels + 1]. All zero without samples.
at::Tensor own_statistics(const at::Tensor& input) {
  const auto options = input.options().dtype(at::kDouble);
  const int64_t channels = input.size(1);
  if (input.numel() == 0) return at::zeros({2 * channels + 1}, options);
  // Momentum is not used without running statistics.
  auto [mean, var] = at::batch_norm_update_stats(input, {}, {}, /*momentum=*/0.0);
  const auto count = at::full({1}, static_cast<double>(input.numel() / channels), options);
  return at::cat({mean.to(at::kDouble), var.to(at::kDouble), count});
}

// A single message. Ranks may have different counts, so their variances cannot simply be added.
Statistics all_statistics(c10d::ProcessGroup& group, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  std::vector<at::Tensor> own{own_statistics(input)};
  const auto all = at::empty({group.getSize(), 2 * channels + 1}, own[0].options());
  std::vector<std::vector<at::Tensor>> rows{all.unbind()};
  group.allgather(rows, own)->wait();

  const auto counts = all.narrow(1, 2 * channels, 1);
  const auto count = counts.sum();
  const auto means = all.narrow(1, 0, channels), vars = all.narrow(1, channels, channels);
  const auto mean = (means * counts).sum(0) / count;
  // Chan, Golub, LeVeque (1979): the variance within the ranks plus the variance between them.
  const auto var = ((vars + (means - mean).square()) * counts).sum(0) / count;
  return {mean, var, count.item<double>()};
}

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  // Returns the output, and the mean and unbiased variance over all ranks.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& given, const at::Tensor& weight,
                               const at::Tensor& bias, double eps, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const auto input = dense(given);
    const auto all = all_statistics(*group, input);
    TORCH_CHECK_VALUE(all.count > 1, "expected more than 1 value per channel when training, over all ranks; ",
                      "the input here is of shape ", input.sizes());
    const auto mean = as(all.mean, input), var = as(all.var, input);
    ctx->save_for_backward({input, weight, mean, var});
    ctx->saved_data["group"] = c10::IValue::make_capsule(group);
    ctx->saved_data["count"] = all.count;
    ctx->saved_data["eps"] = eps;
    const auto unbiased = as(all.var * (all.count / (all.count - 1)), input);
    ctx->mark_non_differentiable({mean, unbiased});
    // The kernel for evaluation: it normalizes with the given statistics.
    const auto output = input.numel() == 0
        ? at::empty_like(input)
        : std::get<0>(at::native_batch_norm(input, weight, bias, mean, var, /*training=*/false, /*momentum=*/0.0, eps));
    return {output, mean, unbiased};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3];
    const double count = ctx->saved_data["count"].toDouble(), eps = ctx->saved_data["eps"].toDouble();
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(ctx->saved_data["group"].toCapsule());
    const bool needs_input = ctx->needs_input_grad(0);

    // The backward kernel for evaluation treats mean and variance as constants; their contribution is added below.
    at::Tensor grad_input, grad_weight, grad_bias;
    if (input.numel() == 0) {
      grad_input = at::zeros_like(input), grad_weight = at::zeros_like(weight), grad_bias = at::zeros_like(weight);
    } else {
      std::tie(grad_input, grad_weight, grad_bias) = at::native_batch_norm_backward(
          dense(grads[0]), input, weight, mean, var, {}, {}, /*train=*/false, eps, {needs_input, true, true});
    }
    if (needs_input) {
      // The ranks' sums of dy and of dy * x̂, x̂ being the normalized input.
      std::vector<at::Tensor> sums{at::stack({grad_bias, grad_weight}).to(at::kDouble)};
      group->allreduce(sums)->wait();
      if (input.numel() != 0) {
        // dx = w / σ * (dy - mean(dy) - x̂ * mean(dy * x̂)): one factor and one term per channel.
        const auto inverse = (var.to(at::kDouble) + eps).rsqrt(), scale = weight.to(at::kDouble) * inverse / count;
        const auto factor = -scale * sums[0][1] * inverse, term = -scale * sums[0][0] - factor * mean;
        std::vector<int64_t> shape(input.dim(), 1);
        shape[1] = input.size(1);
        const auto per_channel = [&](const at::Tensor& t) { return t.to(grad_input.scalar_type()).view(shape); };
        grad_input.add_(per_channel(term)).addcmul_(input, per_channel(factor));
      }
    }
    return {grad_input, ctx->needs_input_grad(1) ? grad_weight : at::Tensor(),
            ctx->needs_input_grad(2) ? grad_bias : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

extern "C" {

// Returns three tensors: the output, and the mean and unbiased variance over all ranks. The caller owns each, as tch
// requires.
Status lc_sync_batch_norm(GroupHandle* g, const at::Tensor* input, const at::Tensor* weight, const at::Tensor* bias,
                          double eps, at::Tensor** out) noexcept {
  return guard([&] {
    TORCH_CHECK_VALUE(input->dim() >= 2 && input->size(1) == weight->numel() && weight->sizes() == bias->sizes(),
                      "expected inputs of shape [n, ", weight->numel(), ", ...], not ", input->sizes());
    auto results = SyncBatchNorm::apply(*input, *weight, *bias, eps, g->group);
    for (size_t i = 0; i < results.size(); ++i) out[i] = new at::Tensor(std::move(results[i]));
  });
}

} // extern "C"
