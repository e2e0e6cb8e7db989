// What autograd needs of C++ to divide a model over ranks: a collective with another one as its gradient, and a function
// that is computed again in the backward pass. PyTorch has both in Python: torch/distributed/nn/functional.py and
// torch/utils/checkpoint.py.

#include "autocast.hpp"
#include "shim.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

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

at::Tensor run(Step step, c10d::ProcessGroup& group, const at::Tensor& given, int64_t dim) {
  const int64_t world = group.getSize();
  if (step == Step::ReduceScatter || step == Step::OwnPart)
    TORCH_CHECK_VALUE(given.size(dim) % world == 0, "dimension ", dim, " of a tensor of shape ", given.sizes(),
                      " cannot be divided into ", world, " equal parts");
  switch (step) {
    case Step::Identity: return given;
    case Step::AllReduce: return all_reduced(group, given);
    case Step::AllGather: return all_gathered(group, given, dim);
    case Step::ReduceScatter: return reduce_scattered(group, given, dim);
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

// A function of Rust. It takes ownership of the input and gives that of the output; null if it failed, with a text.
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

// Draws again what was drawn from `state`, and then goes on where it was.
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
  // `anchor` requires a gradient, so that the output does even if only parameters inside the closure do.
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

// Takes ownership of `data`, and frees it with `free` also on failure.
Status lc_checkpoint(const at::Tensor* input, Body body, Free free, void* data, at::Tensor** out) noexcept {
  return guard([&] {
    const auto closure = c10::make_intrusive<Closure>(body, free, data);
    const auto anchor = at::empty({0}, input->options().dtype(at::kFloat)).set_requires_grad(true);
    *out = new at::Tensor(Checkpoint::apply(*input, anchor, closure));
  });
}

} // extern "C"
