#include "eval/speed.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status.h"
#include "engine/memory_plan.h"
#include "engine/sequence_runner.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

// Some ordinary token values; which ones does not matter to speed, that they differ does.
std::vector<TokenValue> some_tokens(std::int64_t count, int vocabulary) {
  std::vector<TokenValue> tokens(static_cast<std::size_t>(count));
  std::uint32_t state = 12345;
  for (TokenValue& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<TokenValue>((state >> 8) % static_cast<std::uint32_t>(vocabulary));
  }
  return tokens;
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes of weights that decoding a token reads: all of them, but of an embedding that is not the output too only a row.
std::uint64_t weight_bytes_read(const Weights& weights) {
  const PackedMatrix& embedding = weights.embedding;
  if (weights.output.data == embedding.data) return weights.bytes;
  return weights.bytes - static_cast<std::uint64_t>(embedding.panels()) * embedding.panel_bytes();
}

struct Measurement {
  SpeedFigure figure;
  std::unique_ptr<SequenceRunner> base;  // the state every repetition starts from
  std::vector<double> rates;
};

}  // namespace

Result<std::vector<SpeedFigure>> measure_speed(const std::shared_ptr<LoadedModel>& model, const SpeedOptions& options,
                                               const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  if (options.repeat < 1 || options.repeat > 1000)
    return invalid_argument("--repeat {} is outside 1 to 1000", options.repeat);
  constexpr std::int64_t kMost = std::int64_t{1} << 26;
  for (const std::int64_t count : {options.prefill, options.decode})
    if (count < 0 || count > kMost) return invalid_argument("{} tokens are outside 0 to 2^26", count);
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(options.policy));

  // One cache for all states: each is a sequence of its own, each repetition a fork of it.
  std::uint64_t budget = 0;
  std::int64_t work = options.prefill * options.repeat;
  const auto add_budget = [&](std::int64_t tokens) {
    budget += plan_kv_memory(model->kv_shape, *policy, {tokens, tokens, model->options.chunk, 1}).bytes;
  };
  if (options.prefill > 0) add_budget(options.prefill);
  for (const std::int64_t depth : options.depths) {
    if (depth < 0 || depth > kMost) return invalid_argument("--depth {} is outside 0 to 2^26", depth);
    if (options.decode == 0) continue;
    if (least_kv_bytes(model->kv_shape, std::min(policy->bound().value_or(depth), depth)) > available_memory())
      return exhausted("a cache of {} tokens is more than this machine has memory for; lower --depth", depth);
    work += depth + options.decode * (options.repeat + 1);
    add_budget(depth + options.decode + 1);
    // A fork has its own tables, its own copy of the open page, and what it adds.
    budget += KvCache::column_cost(model->kv_shape) *
              static_cast<std::uint64_t>((depth + 2 * options.decode) / model->kv_shape.page.slots + 4);
  }
  if (budget == 0) return invalid_argument("nothing to measure: give --prefill or --decode");
  if (budget > available_memory())
    return exhausted("these depths need {} bytes of KV memory, more than this machine has left ({})", budget,
                     available_memory());
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> own, KvCache::create(model->kv_shape, budget));
  const std::shared_ptr<KvCache> cache = std::move(own);

  std::int64_t done = 0;
  Status status;
  const auto advance = [&](std::int64_t tokens) {
    done += tokens;
    return !progress || progress(done, work);
  };
  using Source = SequenceRunner::Source;
  const auto feed = [&](SequenceRunner& runner, std::int64_t count, Source source) -> Status {
    const std::vector<TokenValue> tokens = some_tokens(count, model->config.vocabulary);
    std::int64_t noted = runner.sequence().next_id();
    return runner.feed(
        tokens, model->options.chunk,
        source == Source::kGenerated ? SequenceRunner::Logits::kAll : SequenceRunner::Logits::kLast,
        [&](std::int64_t, int, std::span<const float>) {
          const std::int64_t now = runner.sequence().next_id();
          return advance(now - std::exchange(noted, now));
        },
        source);
  };

  std::vector<Measurement> measurements;
  if (options.prefill > 0) {
    measurements.push_back({});
    measurements.back().figure = {"prefill", 0, options.prefill};
  }
  for (const std::int64_t depth : options.depths) {
    if (options.decode == 0) continue;
    Measurement m;
    m.figure = {"decode", depth, options.decode};
    m.base = std::make_unique<SequenceRunner>(model, cache, policy->clone());
    if (depth > 0) KVASIR_RETURN_IF_ERROR(feed(*m.base, depth, Source::kPrompt));
    m.figure.kv_bytes = static_cast<std::uint64_t>(m.base->sequence().mean_length()) * 2 *
                        model->kv_shape.page.element_bytes() *
                        static_cast<std::uint64_t>(model->kv_shape.page.head_dim * model->kv_shape.lanes());
    measurements.push_back(std::move(m));
  }
  for (int repetition = 0; repetition <= options.repeat; ++repetition) {
    for (Measurement& m : measurements) {
      if (repetition == 0 && m.base == nullptr) continue;  // the first round warms up decoding
      std::unique_ptr<SequenceRunner> runner;
      if (m.base == nullptr) {
        runner = std::make_unique<SequenceRunner>(model, cache, policy->clone());
      } else {
        KVASIR_ASSIGN_OR_RETURN(runner, m.base->fork());
        KVASIR_RETURN_IF_ERROR(runner->own_pages());
      }
      const double seconds = seconds_of(
          [&] { status = feed(*runner, m.figure.tokens, m.base == nullptr ? Source::kPrompt : Source::kGenerated); });
      KVASIR_RETURN_IF_ERROR(status);
      if (repetition > 0) m.rates.push_back(static_cast<double>(m.figure.tokens) / seconds);
    }
  }
  std::vector<SpeedFigure> figures;
  for (Measurement& m : measurements) {
    std::sort(m.rates.begin(), m.rates.end());
    m.figure.median = m.rates[m.rates.size() / 2];
    m.figure.lowest = m.rates.front();
    m.figure.highest = m.rates.back();
    if (m.base != nullptr)
      m.figure.gigabytes_per_s =
          static_cast<double>(weight_bytes_read(*model->weights) + m.figure.kv_bytes) * m.figure.median / 1e9;
    figures.push_back(m.figure);
  }
  return figures;
}

}  // namespace kvasir
