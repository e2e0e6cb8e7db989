// The C++ part of autograd for a model that is divided over ranks: a collective whose gradient is another collective, and a
// function that is computed again in the backward pass. PyTorch has both in Python: torch/distributed/nn/functional.py and
// torch/utils/checkpoint.py.

#include "autocast.hpp"
#include "shim.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

using namespace shim;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// src/autograd.rs has the same numbers.
enum class Step : int64_t { Identity = 0, AllReduce = 1, AllGather = 2, ReduceScatter = 3, OwnPart = 4 };

at::Tensor all_reduced(c10d::ProcessGroup& group, const at::Tensor& given) {
  std::vector<at::Tensor> sum{given.detach().clone(at::MemoryFormat::Contiguous)};
  group.allreduce(sum)->wait();
  return sum[0];
}

at::Tensor all_gathered(c10d::ProcessGroup& group, const at::Tensor& given, int64_t dim) {
  auto part = given.detach().contiguous();
  auto sizes = part.sizes().vec();
  sizes.at(0) *= group.getSize();
  auto whole = at::empty(sizes, part.options());
  group._allgather_base(whole, part)->wait();
  return dim == 0 ? whole : at::cat(whole.chunk(group.getSize(), 0), dim);
}

at::Tensor reduce_scattered(c10d::ProcessGroup& group, const at::Tensor& given, int64_t dim) {
  auto parts = given.detach();
  parts = dim == 0 ? parts.contiguous() : at::cat(parts.chunk(group.getSize(), dim), 0);
  auto part = parts.chunk(group.getSize(), 0)[0].clone();
  group._reduce_scatter_base(part, parts)->wait();
  return part;
}

// The result of a collective is not the tensor that the operation keeps: autograd gives it a graph.
at::Tensor run(Step step, c10d::ProcessGroup& group, const at::Tensor& given, int64_t dim) {
  const int64_t world = group.getSize();
  if (step == Step::ReduceScatter || step == Step::OwnPart)
    TORCH_CHECK_VALUE(given.size(dim) % world == 0, "dimension ", dim, " of a tensor of shape ", given.sizes(),
                      " cannot be divided into ", world, " equal parts");
  switch (step) {
    case Step::Identity: return given;
    case Step::AllReduce: return numbers(all_reduced(group, given));
    case Step::AllGather: return numbers(all_gathered(group, given, dim));
    case Step::ReduceScatter: return numbers(reduce_scattered(group, given, dim));
    case Step::OwnPart: return given.detach().chunk(world, dim)[group.getRank()].clone(at::MemoryFormat::Contiguous);
  }
  TORCH_CHECK(false, "unknown step ", static_cast<int64_t>(step));
}

struct Paired : torch::autograd::Function<Paired> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, Step forward, Step backward, int64_t dim,
                            const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    ctx->saved_data["group"] = c10::IValue::make_capsule(group);
    ctx->saved_data["backward"] = static_cast<int64_t>(backward);
    ctx->saved_data["dim"] = dim;
    return run(forward, *group, input, dim);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(ctx->saved_data["group"].toCapsule());
    const auto step = static_cast<Step>(ctx->saved_data["backward"].toInt());
    return {run(step, *group, grads[0], ctx->saved_data["dim"].toInt()), {}, {}, {}, {}};
  }
};

// Rows of the first dimension: as many to each rank as `sends` has, and from each as `receives` has; none of the two lists for equal parts.
at::Tensor rows_exchanged(c10d::ProcessGroup& group, const at::Tensor& given, std::vector<int64_t> sends,
                          std::vector<int64_t> receives) {
  auto from = given.detach().contiguous();
  auto sizes = from.sizes().vec();
  if (!receives.empty()) sizes.at(0) = std::accumulate(receives.begin(), receives.end(), int64_t{0});
  auto to = at::empty(sizes, from.options());
  group.alltoall_base(to, from, receives, sends)->wait();
  return numbers(to); // as in `run`
}

struct RowsExchanged : torch::autograd::Function<RowsExchanged> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const std::vector<int64_t>& sends,
                            const std::vector<int64_t>& receives, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    ctx->saved_data["group"] = c10::IValue::make_capsule(group);
    ctx->saved_data["sends"] = sends;
    ctx->saved_data["receives"] = receives;
    return rows_exchanged(*group, input, sends, receives);
  }

  // Each row's gradient goes back to where the row came from.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(ctx->saved_data["group"].toCapsule());
    const auto list = [ctx](const char* name) { return ctx->saved_data[name].toIntVector(); };
    return {rows_exchanged(*group, grads[0], list("receives"), list("sends")), {}, {}, {}};
  }
};

// A Rust function. It takes ownership of the input and passes ownership of the output to the caller. If it fails, it returns
// null and writes a text to `why`.
using Body = at::Tensor* (*)(void* data, at::Tensor* input, char* why, size_t capacity);
using Free = void (*)(void* data);

struct Closure : torch::CustomClassHolder {
  Closure(Body body, Free free, void* data) : body_(body), free_(free), data_(data) {}
  Closure(const Closure&) = delete;
  Closure& operator=(const Closure&) = delete;
  ~Closure() override { free_(data_); }

  at::Tensor operator()(const at::Tensor& input) const {
    char why[1024] = "";
    const std::unique_ptr<at::Tensor> output{body_(data_, new at::Tensor(input), why, sizeof why)};
    TORCH_CHECK(output, why);
    return *output;
  }

 private:
  Body body_;
  Free free_;
  void* data_;
};

// The generator from which dropout on this device draws.
at::Tensor random_state(at::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(at::Device device, const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// Repeats the random draws from `state`, then restores the generator.
class Replay {
 public:
  Replay(at::Device device, const at::Tensor& state) : device_(device), now_(random_state(device)) {
    set_random_state(device, state);
  }
  ~Replay() {
    (void)guard([&] { set_random_state(device_, now_); });
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  at::Device device_;
  at::Tensor now_;
};

// Autocast as it was in the forward pass.
class SameAutocast {
 public:
  explicit SameAutocast(const AutocastState& then) : before_(enter_autocast(then)) {}
  ~SameAutocast() {
    (void)guard([&] { leave_autocast(before_); });
  }
  SameAutocast(const SameAutocast&) = delete;
  SameAutocast& operator=(const SameAutocast&) = delete;

 private:
  AutocastState before_;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  // `anchor` requires a gradient, so the output does too, even if only parameters inside the closure require one.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& anchor,
                            const c10::intrusive_ptr<Closure>& closure) {
    ctx->save_for_backward({input});
    ctx->saved_data["closure"] = c10::IValue::make_capsule(closure);
    ctx->saved_data["random"] = random_state(input.device());
    const auto autocast = autocast_state(input.is_cuda());
    ctx->saved_data["autocast"] = autocast.enabled;
    ctx->saved_data["autocast_dtype"] = static_cast<int64_t>(autocast.dtype);
    return (*closure)(input);
  }

  // A backward pass inside the backward pass, as with use_reentrant=True in Python.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables()[0];
    const auto closure = c10::static_intrusive_pointer_cast<Closure>(ctx->saved_data["closure"].toCapsule());
    const auto input = saved.detach().set_requires_grad(ctx->needs_input_grad(0));
    at::Tensor output;
    {
      const at::AutoGradMode record(true);
      const Replay replay(input.device(), ctx->saved_data["random"].toTensor());
      const SameAutocast autocast({static_cast<int32_t>(ctx->saved_data["autocast_dtype"].toInt()),
                                   ctx->saved_data["autocast"].toBool(), input.is_cuda()});
      output = (*closure)(input);
    }
    TORCH_CHECK_VALUE(output.sizes() == grads[0].sizes(), "a checkpointed function returned a tensor of shape ", output.sizes(),
                      " in the backward pass and of ", grads[0].sizes(), " before");
    if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    return {input.grad(), {}, {}};
  }
};

} // namespace

extern "C" {

Status lc_paired(GroupHandle* g, const at::Tensor* input, int64_t forward, int64_t backward, int64_t dim,
                 at::Tensor** out) noexcept {
  return guard([&] {
    TORCH_CHECK_VALUE(dim >= 0 && dim < std::max<int64_t>(input->dim(), 1), "a tensor of shape ", input->sizes(),
                      " has no dimension ", dim);
    auto result = Paired::apply(*input, static_cast<Step>(forward), static_cast<Step>(backward), dim, g->group);
    *out = new at::Tensor(std::move(result));
  });
}

// Both lists have a number for each rank, or none.
Status lc_rows_exchanged(GroupHandle* g, const at::Tensor* input, const int64_t* sends, const int64_t* receives, size_t n,
                         at::Tensor** out) noexcept {
  return guard([&] {
    TORCH_CHECK_VALUE(input->dim() > 0, "a tensor without dimensions has no rows");
    const std::vector<int64_t> to(sends, sends + n), from(receives, receives + n);
    const auto world = g->group->getSize();
    const auto negative = [](int64_t count) { return count < 0; };
    TORCH_CHECK_VALUE(std::none_of(to.begin(), to.end(), negative) && std::none_of(from.begin(), from.end(), negative),
                      "numbers of rows below 0: ", to, " to the ranks, ", from, " from them");
    TORCH_CHECK_VALUE(n == 0 || static_cast<int64_t>(n) == world, n, " numbers of rows for a group of ", world);
    const auto sum = std::accumulate(to.begin(), to.end(), int64_t{0});
    TORCH_CHECK_VALUE(n == 0 || sum == input->size(0), "a tensor of shape ", input->sizes(), " does not have the ", sum,
                      " rows that are to be sent");
    TORCH_CHECK_VALUE(n != 0 || input->size(0) % world == 0, "the rows of a tensor of shape ", input->sizes(),
                      " cannot be divided into ", world, " equal parts");
    *out = new at::Tensor(RowsExchanged::apply(*input, to, from, g->group));
  });
}

// Takes ownership of `data`, and frees it with `free` also on failure.
Status lc_checkpoint(const at::Tensor* input, Body body, Free free, void* data, at::Tensor** out) noexcept {
  return guard([&] {
    const auto closure = c10::make_intrusive<Closure>(body, free, data);
    const auto anchor = at::empty({0}, input->options().dtype(at::kFloat)).set_requires_grad(true);
    *out = new at::Tensor(Checkpoint::apply(*input, anchor, closure));
  });
}

} // extern "C"

// Batch normalization over the samples of all ranks, as an autograd function. PyTorch implements it in Python, in
// torch/nn/modules/_functions.py. Its kernels there exist only for CUDA; the kernels used here are those of ordinary
// batch norm, for all devices.

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
