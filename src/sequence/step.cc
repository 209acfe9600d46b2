#include "sequence/step.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

class Stopwatch {
 public:
  // Seconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Returns whether no value is infinite or NaN: their exponents are all ones.
bool all_finite(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

// Checks what a sequence's rows gave, and takes the drafts off that do not come true. Returns false if a logit or
// hidden state of what stays is not finite. Rows of drafts that stay were finite: others end those before them.
bool settle(const Sequence::PassPlan& pass, DraftJudge* judge, StepResult* result) {
  if (!pass.has_drafts()) return all_finite(result->logits) && all_finite(result->hidden);
  const std::size_t vocabulary = result->logits.size() / static_cast<std::size_t>(result->rows);
  int rows = 0;
  while (rows < result->rows &&
         all_finite(result->logits.subspan(static_cast<std::size_t>(rows) * vocabulary, vocabulary)))
    ++rows;
  const auto keep = [&](int count) {
    result->tokens = result->rows = count;
    result->logits = result->logits.first(static_cast<std::size_t>(count) * vocabulary);
  };
  if (rows == 0) return false;
  keep(rows);
  keep(judge->judge(*result));
  return true;
}

// The numbers of the requests, those with the same adapters side by side, so that their rows are multiplied together.
std::vector<std::size_t> batch_order(std::span<const StepRequest> requests) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto adapters = [&](std::size_t i) { return requests[i].sequence->adapters(); };
  if (std::ranges::all_of(order, [&](std::size_t i) { return adapters(i).empty(); })) return order;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::ranges::lexicographical_compare(
        adapters(a), adapters(b), [](const AppliedAdapter& one, const AppliedAdapter& other) {
          return std::tie(one.number, one.scale) < std::tie(other.number, other.scale);
        });
  });
  return order;
}

}  // namespace

Step::Step(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache)
    : model_(std::move(model)), cache_(std::move(cache)) {}

Step::Plan Step::plan(std::span<const StepRequest> requests) const {
  Plan plan;
  for (const StepRequest& request : requests) {
    if (plan.status = request.sequence->status(); !plan.status.ok()) return plan;
    plan.passes.push_back(request.sequence->plan_pass(request.input));
    plan.bytes += plan.passes.back().bytes + plan.passes.back().reserve;
    plan.rows += plan.passes.back().rows;
  }
  plan.fits = plan.bytes <= cache_->budget().available();
  return plan;
}

Status Step::run(const Plan& plan, std::span<const StepRequest> requests, std::span<StepResult> results) {
  KVASIR_RETURN_IF_ERROR(plan.status);
  KVASIR_CHECK(plan.passes.size() == requests.size() && results.size() == requests.size());
  Stopwatch clock;
  if (!plan.fits) return kv_memory_full(cache_->budget(), plan.bytes);
  std::vector<char> finite(requests.size());  // nothing may throw behind the forward pass
  const std::vector<std::size_t> order = batch_order(requests);
  batch_.tokens.clear();
  batch_.sequences.clear();
  std::size_t tables = 0;
  double observing = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    observing -= requests[i].sequence->listener().seconds();
    // The sum of all fits, and compaction takes at most the reserve.
    KVASIR_CHECK(requests[i].sequence->make_room(plan.passes[i]).ok());
  }
  // Reserved exactly: vectors that grow by themselves take up to twice as much.
  for (const StepRequest& request : requests) tables += static_cast<std::size_t>(request.sequence->tables().tables());
  batch_.tokens.reserve(static_cast<std::size_t>(plan.rows));
  batch_.sequences.reserve(requests.size());
  batch_.tables.reserve(tables);
  tables = 0;
  for (const std::size_t i : order)
    requests[i].sequence->describe(plan.passes[i], requests[i].input.rest, &batch_, &tables);
  times_.cache += clock.lap();
  if (watch_)
    for (const StepRequest& request : requests) watch_(*request.sequence);
  clock.lap();

  for (BatchSequence& sequence : batch_.sequences)
    if (sequence.selector == nullptr) sequence.selector = selector_;
  const Backend::Outputs out = model_->transformer->forward({&batch_, model_->store_of(*cache_)});
  for (const StepRequest& request : requests) observing += request.sequence->listener().seconds();
  times_.forward += clock.lap() - observing;
  times_.cache += observing;

  std::size_t row = 0, hidden_row = 0;
  const auto vocabulary = static_cast<std::size_t>(model_->config.vocabulary);
  const auto width = static_cast<std::size_t>(model_->config.width);
  for (const std::size_t i : order) {
    const Sequence::PassPlan& pass = plan.passes[i];
    StepResult& result = results[i];
    result = {};
    result.tokens = pass.repeats() ? 0 : pass.rows;
    result.rows = pass.logits;
    result.first = pass.chunk.first + pass.first + pass.rows - pass.logits;
    result.logits = out.logits.subspan(row * vocabulary, static_cast<std::size_t>(pass.logits) * vocabulary);
    result.hidden = out.hidden.subspan(hidden_row * width, static_cast<std::size_t>(pass.hidden) * width);
    row += static_cast<std::size_t>(pass.logits);
    hidden_row += static_cast<std::size_t>(pass.hidden);
  }
  model_->threads->parallel_for(static_cast<int>(finite.size()), [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    finite[i] = settle(plan.passes[i], requests[i].judge, &results[i]) ? 1 : 0;
  });
  for (std::size_t i = 0; i < requests.size(); ++i) {
    StepResult& result = results[i];
    if (finite[i] == 0 && plan.passes[i].is_drafting()) {
      result.status = data_loss("the logits of a draft are NaN");
    } else if (finite[i] == 0) {
      const Sequence& sequence = *requests[i].sequence;
      const char* const cause = sequence.adapters().empty()
                                    ? "the file is damaged, unless --kv full with --kv-type f16 gives a text"
                                    : "an adapter is damaged or its scale too large, if the text runs without adapters";
      result.status = data_loss("the model's output under '{}' in {} pages is NaN: {}", sequence.policy().traits().spec,
                                codec_name(sequence.shape().codec()), cause);
      requests[i].sequence->fail(result.status);
      continue;
    }
    if (result.status = requests[i].sequence->offloaded().status(); !result.status.ok()) {
      requests[i].sequence->fail(result.status);
      continue;
    }
    requests[i].sequence->finish_pass(plan.passes[i], result.tokens);
  }
  times_.cache += clock.lap();
  return {};
}

Status Step::repeat(Sequence& sequence, int chunk) {
  while (sequence.status().ok() && sequence.rows_to_repeat() > 0) {
    Sequence::Input input;
    input.chunk = chunk;
    const StepRequest request{&sequence, input};
    StepResult result;
    KVASIR_RETURN_IF_ERROR(run(plan({&request, 1}), {&request, 1}, {&result, 1}));
    KVASIR_RETURN_IF_ERROR(result.status);
  }
  return sequence.status();
}

}  // namespace kvasir
