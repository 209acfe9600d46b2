#include "eval/speed.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status.h"
#include "base/system_memory.h"
#include "engine/context_rules.h"
#include "engine/memory_plan.h"
#include "engine/sequence_runner.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

// Returns arbitrary token ids. Their values do not affect speed, as long as they differ.
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

// Returns the bytes of weights that decoding one token reads: all of them, except an embedding that is not also the
// output matrix, of which one row is read.
std::uint64_t weight_bytes_read(const LoadedModel& model) {
  if (model.weights.output == model.weights.embedding) return model.weight_bytes;
  return model.weight_bytes - model.embedding_bytes;
}

constexpr std::int64_t kMostTokens = std::int64_t{1} << 26;

struct Measurement {
  SpeedFigure figure;
  std::size_t first = 0;                               // the measurement it is compared with
  std::unique_ptr<RetentionPolicy> policy;             // at its start
  std::vector<std::unique_ptr<SequenceRunner>> bases;  // decode: the states every repetition starts from, [batch]
  std::vector<double> seconds;                         // of each repetition
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Status check_options(const SpeedOptions& options) {
  if (options.repeat < 1 || options.repeat > 1000)
    return invalid_argument("repeat={} is outside 1 to 1000", options.repeat).about({"repeat"});
  for (const auto& [name, count] : {std::pair{"prefill", options.prefill}, std::pair{"decode", options.decode}})
    if (count < 0 || count > kMostTokens)
      return invalid_argument("{}={} is outside 0 to 2^26 tokens", name, count).about({name});
  for (const std::int64_t depth : options.depths)
    if (depth < 0 || depth > kMostTokens)
      return invalid_argument("a depth of {} is outside 0 to 2^26 tokens", depth).about({"depths"});
  if (options.batches.empty())
    return invalid_argument("there is no batch to measure; give at least one size").about({"batch"});
  for (const int batch : options.batches)
    if (batch < 1 || batch > 256) return invalid_argument("a batch of {} is outside 1 to 256", batch).about({"batch"});
  if (options.prefill == 0 && (options.decode == 0 || options.depths.empty()))
    return invalid_argument("there is nothing to measure; give tokens to prefill or decode")
        .about({"prefill", "decode"});
  return {};
}

// Lists the measurements, policy by policy; every policy has the same tests in the same order.
Result<std::vector<Measurement>> make_measurements(const SpeedOptions& options) {
  std::vector<Measurement> measurements;
  const std::size_t tests =
      (options.prefill > 0 ? 1 : 0) + (options.decode > 0 ? options.depths.size() * options.batches.size() : 0);
  for (const std::string& spec : options.policies) {
    const auto add = [&](const char* name, std::int64_t depth, std::int64_t tokens, int batch = 1) -> Status {
      Measurement m;
      m.first = measurements.size() % tests;
      m.figure.policy = spec;
      m.figure.name = name;
      m.figure.depth = depth;
      m.figure.tokens = tokens;
      m.figure.batch = batch;
      KVASIR_ASSIGN_OR_RETURN(m.policy, make_policy(spec));
      measurements.push_back(std::move(m));
      return {};
    };
    if (options.prefill > 0) KVASIR_RETURN_IF_ERROR(add("prefill", 0, options.prefill));
    if (options.decode == 0) continue;
    for (const std::int64_t depth : options.depths)
      for (const int batch : options.batches) KVASIR_RETURN_IF_ERROR(add("decode", depth, options.decode, batch));
  }
  return measurements;
}

// Returns the bytes that a measurement's sequences need together.
Result<std::uint64_t> bytes_needed(const LoadedModel& model, const Measurement& m) {
  const KvCacheShape& shape = model.kv_shape;
  const std::int64_t depth = m.figure.depth;
  if (least_kv_bytes(shape, *m.policy, std::min(m.policy->bound().value_or(depth), depth)) > memory_bound())
    return exhausted("a cache of {} tokens is more than this machine has memory for; give a smaller depth", depth)
        .about({"depths"});
  const auto plan = [&](std::int64_t tokens, std::int64_t prompt) {
    return plan_kv_memory(shape, *m.policy, {tokens, prompt, model.options.chunk, 1});
  };
  if (m.figure.name == "prefill") return plan(m.figure.tokens, m.figure.tokens).bytes;
  const KvMemory planned = plan(depth + m.figure.tokens + 1, depth);
  const std::uint64_t state = planned.bytes;
  const std::uint64_t bounds = m.policy->traits().chunk_reads ? planned.policy_bytes : 0;  // forks have their own
  const auto batch = static_cast<std::uint64_t>(m.figure.batch);
  // A fork under a compacting policy comes to own all its pages.
  if (m.policy->traits().compacts) return batch * 2 * state;
  // Any other fork owns its tables, its copy of the open page, and the pages it adds.
  return batch * (state + bounds + KvCache::cost(shape, {}, (depth + 2 * m.figure.tokens) / shape.page.slots + 4));
}

}  // namespace

Result<std::vector<SpeedFigure>> measure_speed(const std::shared_ptr<LoadedModel>& model, const SpeedOptions& options,
                                               const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  KVASIR_ASSIGN_OR_RETURN(std::vector<Measurement> measurements, make_measurements(options));
  // One cache holds all base sequences; each repetition runs on forks of them.
  std::uint64_t budget = 0;
  std::int64_t work = 0;
  for (const Measurement& m : measurements) {
    KVASIR_RETURN_IF_ERROR(
        check_positions(*m.policy, model->options.chunk, model->config.context, m.figure.depth + m.figure.tokens + 1));
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t bytes, bytes_needed(*model, m));
    budget += bytes;
    work +=
        m.figure.batch * (m.figure.depth + m.figure.tokens * (options.repeat + (m.figure.name == "prefill" ? 0 : 1)));
  }
  if (budget > memory_bound())
    return exhausted("these depths need {} bytes of KV memory, more than this machine has left ({}); give smaller ones",
                     budget, memory_bound())
        .about({"depths"});
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, new_cache(model, budget));

  std::int64_t done = 0;
  const auto feed = [&](SequenceRunner& runner, std::int64_t count, Source source) -> Status {
    const std::vector<TokenId> tokens = some_tokens(count, model->config.vocabulary);
    std::int64_t noted = runner.sequence().next_index();
    return runner.feed(
        tokens, model->options.chunk,
        source == Source::kGenerated ? SequenceRunner::Logits::kAll : SequenceRunner::Logits::kLast,
        [&](std::int64_t, int, std::span<const float>) {
          const std::int64_t now = runner.sequence().next_index();
          done += now - std::exchange(noted, now);
          return !progress || progress(done, work);
        },
        source);
  };

  // Decodes all sequences together, one token of each per pass.
  const auto decode = [&](std::span<const std::unique_ptr<SequenceRunner>> runners, std::int64_t count) -> Status {
    const std::vector<TokenId> tokens =
        some_tokens(count + static_cast<std::int64_t>(runners.size()), model->config.vocabulary);
    Step step(model, cache);
    std::vector<StepRequest> requests(runners.size());
    std::vector<StepResult> results(runners.size());
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::size_t r = 0; r < runners.size(); ++r)
        requests[r] = {&runners[r]->whole(),
                       {std::span(tokens).subspan(static_cast<std::size_t>(t) + r, 1), Source::kGenerated}};
      KVASIR_RETURN_IF_ERROR(step.run(step.plan(requests), requests, results));
      for (const StepResult& result : results) KVASIR_RETURN_IF_ERROR(result.status);
      done += static_cast<std::int64_t>(runners.size());
      if (progress && !progress(done, work)) return Status(StatusCode::kCancelled, "stopped");
    }
    return {};
  };

  for (Measurement& m : measurements) {
    if (m.figure.name == "prefill") continue;
    for (int b = 0; b < m.figure.batch; ++b) {
      m.bases.push_back(std::make_unique<SequenceRunner>(model, cache, m.policy->clone()));
      if (m.figure.depth > 0) KVASIR_RETURN_IF_ERROR(feed(*m.bases.back(), m.figure.depth, Source::kPrompt));
    }
    m.figure.kv_bytes = static_cast<std::uint64_t>(m.figure.batch) *
                        static_cast<std::uint64_t>(m.bases.front()->sequence().mean_stored()) *
                        model->kv_shape.page.slot_bytes() * static_cast<std::uint64_t>(model->kv_shape.lanes());
  }
  for (int repetition = 0; repetition <= options.repeat; ++repetition) {
    for (Measurement& m : measurements) {
      if (repetition == 0 && m.bases.empty()) continue;  // the first round warms up decoding
      std::vector<std::unique_ptr<SequenceRunner>> runners;
      if (m.bases.empty()) runners.push_back(std::make_unique<SequenceRunner>(model, cache, m.policy->clone()));
      for (const std::unique_ptr<SequenceRunner>& base : m.bases) {
        KVASIR_ASSIGN_OR_RETURN(runners.emplace_back(), base->fork());
        KVASIR_RETURN_IF_ERROR(runners.back()->own_pages());
      }
      Status status;
      const double seconds = seconds_of([&] {
        status = runners.size() > 1
                     ? decode(runners, m.figure.tokens)
                     : feed(*runners.front(), m.figure.tokens, m.bases.empty() ? Source::kPrompt : Source::kGenerated);
      });
      KVASIR_RETURN_IF_ERROR(status);
      if (repetition > 0) m.seconds.push_back(seconds);
    }
  }
  std::vector<SpeedFigure> figures;
  for (Measurement& m : measurements) {
    const auto tokens = static_cast<double>(m.figure.tokens * m.figure.batch);
    m.figure.median = tokens / median(m.seconds);
    m.figure.lowest = tokens / *std::ranges::max_element(m.seconds);
    m.figure.highest = tokens / *std::ranges::min_element(m.seconds);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < m.seconds.size(); ++i)
      ratios.push_back(m.seconds[i] / measurements[m.first].seconds[i]);
    m.figure.slowdown = median(std::move(ratios));
    // A pass reads the weights once, and the keys and values of each sequence.
    if (!m.bases.empty())
      m.figure.gigabytes_per_s = static_cast<double>(weight_bytes_read(*model) + m.figure.kv_bytes) * m.figure.median /
                                 static_cast<double>(m.figure.batch) / 1e9;
    figures.push_back(m.figure);
  }
  return figures;
}

}  // namespace kvasir
