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
std::vector<TokenId> some_tokens(std::int64_t count, int vocabulary) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::uint32_t state = 12345;
  for (TokenId& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<TokenId>((state >> 8) % static_cast<std::uint32_t>(vocabulary));
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

constexpr std::int64_t kMostTokens = std::int64_t{1} << 26;

struct Measurement {
  SpeedFigure figure;
  std::size_t first = 0;                    // the measurement it is compared with
  std::unique_ptr<RetentionPolicy> policy;  // at its start
  std::unique_ptr<SequenceRunner> base;     // decode: the state every repetition starts from
  std::vector<double> seconds;              // of each repetition
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Status check_options(const SpeedOptions& options) {
  if (options.repeat < 1 || options.repeat > 1000)
    return invalid_argument("--repeat {} is outside 1 to 1000", options.repeat);
  for (const auto& [name, count] : {std::pair{"--prefill", options.prefill}, std::pair{"--decode", options.decode}})
    if (count < 0 || count > kMostTokens) return invalid_argument("{} {} is outside 0 to 2^26 tokens", name, count);
  for (const std::int64_t depth : options.depths)
    if (depth < 0 || depth > kMostTokens) return invalid_argument("--depth {} is outside 0 to 2^26", depth);
  if (options.prefill == 0 && (options.decode == 0 || options.depths.empty()))
    return invalid_argument("nothing to measure: give --prefill or --decode");
  return {};
}

// What is measured, policy by policy, each of which has the same tests in the same order.
Result<std::vector<Measurement>> make_measurements(const SpeedOptions& options) {
  std::vector<Measurement> measurements;
  const std::size_t tests = (options.prefill > 0 ? 1 : 0) + (options.decode > 0 ? options.depths.size() : 0);
  for (const std::string& spec : options.policies) {
    const auto add = [&](const char* name, std::int64_t depth, std::int64_t tokens) -> Status {
      Measurement m;
      m.first = measurements.size() % tests;
      m.figure.policy = spec;
      m.figure.name = name;
      m.figure.depth = depth;
      m.figure.tokens = tokens;
      KVASIR_ASSIGN_OR_RETURN(m.policy, make_policy(spec));
      measurements.push_back(std::move(m));
      return {};
    };
    if (options.prefill > 0) KVASIR_RETURN_IF_ERROR(add("prefill", 0, options.prefill));
    if (options.decode == 0) continue;
    for (const std::int64_t depth : options.depths) KVASIR_RETURN_IF_ERROR(add("decode", depth, options.decode));
  }
  return measurements;
}

// Bytes that a measurement's sequences need side by side.
Result<std::uint64_t> bytes_needed(const LoadedModel& model, const Measurement& m) {
  const KvCacheShape& shape = model.kv_shape;
  const std::int64_t depth = m.figure.depth;
  if (least_kv_bytes(shape, std::min(m.policy->bound().value_or(depth), depth)) > available_memory())
    return exhausted("a cache of {} tokens is more than this machine has memory for; lower --depth", depth);
  const auto plan = [&](std::int64_t tokens, std::int64_t prompt) {
    return plan_kv_memory(shape, *m.policy, {tokens, prompt, model.options.chunk, 1}).bytes;
  };
  if (m.figure.name == "prefill") return plan(m.figure.tokens, m.figure.tokens);
  const std::uint64_t state = plan(depth + m.figure.tokens + 1, depth);
  // A fork under a policy by table owns all its pages.
  if (m.policy->by_table()) return 2 * state;
  // Another has its own tables, its own copy of the open page, and what it adds.
  return state +
         KvCache::column_cost(shape) * static_cast<std::uint64_t>((depth + 2 * m.figure.tokens) / shape.page.slots + 4);
}

}  // namespace

Result<std::vector<SpeedFigure>> measure_speed(const std::shared_ptr<LoadedModel>& model, const SpeedOptions& options,
                                               const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  KVASIR_ASSIGN_OR_RETURN(std::vector<Measurement> measurements, make_measurements(options));
  // One cache for all states: each is a sequence of its own, each repetition a fork of it.
  std::uint64_t budget = 0;
  std::int64_t work = 0;
  for (const Measurement& m : measurements) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t bytes, bytes_needed(*model, m));
    budget += bytes;
    work += m.figure.depth + m.figure.tokens * (options.repeat + (m.figure.name == "prefill" ? 0 : 1));
  }
  if (budget > available_memory())
    return exhausted("these depths need {} bytes of KV memory, more than this machine has left ({})", budget,
                     available_memory());
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> own, KvCache::create(model->kv_shape, budget));
  const std::shared_ptr<KvCache> cache = std::move(own);

  std::int64_t done = 0;
  using Source = SequenceRunner::Source;
  const auto feed = [&](SequenceRunner& runner, std::int64_t count, Source source) -> Status {
    const std::vector<TokenId> tokens = some_tokens(count, model->config.vocabulary);
    std::int64_t noted = runner.sequence().next_id();
    return runner.feed(
        tokens, model->options.chunk,
        source == Source::kGenerated ? SequenceRunner::Logits::kAll : SequenceRunner::Logits::kLast,
        [&](std::int64_t, int, std::span<const float>) {
          const std::int64_t now = runner.sequence().next_id();
          done += now - std::exchange(noted, now);
          return !progress || progress(done, work);
        },
        source);
  };

  for (Measurement& m : measurements) {
    if (m.figure.name == "prefill") continue;
    m.base = std::make_unique<SequenceRunner>(model, cache, m.policy->clone());
    if (m.figure.depth > 0) KVASIR_RETURN_IF_ERROR(feed(*m.base, m.figure.depth, Source::kPrompt));
    m.figure.kv_bytes = static_cast<std::uint64_t>(m.base->sequence().mean_length()) * 2 *
                        model->kv_shape.page.element_bytes() *
                        static_cast<std::uint64_t>(model->kv_shape.page.head_dim * model->kv_shape.lanes());
  }
  for (int repetition = 0; repetition <= options.repeat; ++repetition) {
    for (Measurement& m : measurements) {
      if (repetition == 0 && m.base == nullptr) continue;  // the first round warms up decoding
      std::unique_ptr<SequenceRunner> runner;
      if (m.base == nullptr) {
        runner = std::make_unique<SequenceRunner>(model, cache, m.policy->clone());
      } else {
        KVASIR_ASSIGN_OR_RETURN(runner, m.base->fork());
        KVASIR_RETURN_IF_ERROR(runner->own_pages());
      }
      Status status;
      const double seconds = seconds_of(
          [&] { status = feed(*runner, m.figure.tokens, m.base == nullptr ? Source::kPrompt : Source::kGenerated); });
      KVASIR_RETURN_IF_ERROR(status);
      if (repetition > 0) m.seconds.push_back(seconds);
    }
  }
  std::vector<SpeedFigure> figures;
  for (Measurement& m : measurements) {
    const auto tokens = static_cast<double>(m.figure.tokens);
    m.figure.median = tokens / median(m.seconds);
    m.figure.lowest = tokens / *std::ranges::max_element(m.seconds);
    m.figure.highest = tokens / *std::ranges::min_element(m.seconds);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < m.seconds.size(); ++i)
      ratios.push_back(m.seconds[i] / measurements[m.first].seconds[i]);
    m.figure.slowdown = median(std::move(ratios));
    if (m.base != nullptr)
      m.figure.gigabytes_per_s =
          static_cast<double>(weight_bytes_read(*model->weights) + m.figure.kv_bytes) * m.figure.median / 1e9;
    figures.push_back(m.figure);
  }
  return figures;
}

}  // namespace kvasir
