#include "eval/speed.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "base/system_memory.h"
#include "eval/read_bandwidth.h"
#include "planning/memory_plan.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"
#include "sequence/sequence_runner.h"

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

constexpr std::int64_t kMostTokens = std::int64_t{1} << 26;

// Sequences of one policy that hold `depth` tokens. Measurements run on forks of them.
struct Base {
  std::string policy;
  std::int64_t depth = 0;
  int sequences = 1;  // the largest batch that starts from it
  std::vector<std::unique_ptr<SequenceRunner>> runners;
};

struct Measurement {
  SpeedFigure figure;
  std::size_t first = 0;                    // the measurement it is compared with
  std::unique_ptr<RetentionPolicy> policy;  // at its start
  std::size_t base = 0;
  std::vector<double> seconds;  // of each repetition

  bool prefill() const { return figure.name == "prefill"; }
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
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
  if (options.depths.empty() || (options.prefill == 0 && options.decode == 0))
    return invalid_argument("there is nothing to measure; give tokens to prefill or decode")
        .about({"prefill", "decode"});
  return {};
}

// Lists the measurements by policy; every policy has the same tests in the same order.
Result<std::vector<Measurement>> make_measurements(const SpeedOptions& options) {
  std::vector<Measurement> measurements;
  const std::size_t tests =
      options.depths.size() * ((options.prefill > 0 ? 1 : 0) + (options.decode > 0 ? options.batches.size() : 0));
  for (const std::string& spec : options.policies) {
    const auto add = [&](const char* name, std::int64_t depth, std::int64_t tokens, int batch = 1) -> Status {
      Measurement m{.figure = {.policy = spec, .name = name, .depth = depth, .batch = batch, .tokens = tokens},
                    .first = measurements.size() % tests};
      KVASIR_ASSIGN_OR_RETURN(m.policy, make_policy(spec));
      measurements.push_back(std::move(m));
      return {};
    };
    for (const std::int64_t depth : options.depths)
      if (options.prefill > 0) KVASIR_RETURN_IF_ERROR(add("prefill", depth, options.prefill));
    if (options.decode == 0) continue;
    for (const std::int64_t depth : options.depths)
      for (const int batch : options.batches) KVASIR_RETURN_IF_ERROR(add("decode", depth, options.decode, batch));
  }
  return measurements;
}

// Groups the measurements by their starting state, and sets the base of each.
std::vector<Base> make_bases(std::vector<Measurement>& measurements) {
  std::vector<Base> bases;
  for (Measurement& m : measurements) {
    const auto same = [&](const Base& base) { return base.policy == m.figure.policy && base.depth == m.figure.depth; };
    auto base = std::ranges::find_if(bases, same);
    if (base == bases.end()) base = bases.insert(bases.end(), {m.figure.policy, m.figure.depth, 1, {}});
    base->sequences = std::max(base->sequences, m.figure.batch);
    m.base = static_cast<std::size_t>(base - bases.begin());
  }
  return bases;
}

// Plans a sequence of `tokens` tokens under the measurement's policy.
KvMemory planned(const LoadedModel& model, const Measurement& m, std::int64_t tokens, std::int64_t prompt) {
  return plan_kv_memory(model.kv_shape, *m.policy, {tokens, prompt, model.options.chunk, 1});
}

std::uint64_t planned_base_bytes(const LoadedModel& model, const Measurement& m) {
  return planned(model, m, m.figure.depth + 1, m.figure.depth).bytes;
}

// Returns the most bytes that the forks of a measurement need besides their base's.
std::uint64_t fork_bytes(const LoadedModel& model, const Measurement& m) {
  const std::int64_t depth = m.figure.depth, end = depth + m.figure.tokens + 1;
  const KvMemory whole = planned(model, m, end, m.prefill() ? end : depth);
  const auto batch = static_cast<std::uint64_t>(m.figure.batch);
  // Under a compacting policy a fork ends up with its own copy of every page.
  if (m.policy->traits().compacts) return batch * whole.bytes;
  // Under any other it owns its tables, its chunk bounds, its copy of the open page, and the pages it adds.
  const std::uint64_t base = planned_base_bytes(model, m);
  const std::uint64_t added = whole.bytes > base ? whole.bytes - base : 0;
  const std::uint64_t bounds = m.policy->as<RanksSegments>() != nullptr ? whole.policy_bytes : 0;
  return batch * (added + bounds +
                  KvCache::cost(model.kv_shape, {}, (depth + 2 * m.figure.tokens) / model.kv_shape.page.slots + 4));
}

// Returns the bytes needed by all bases, plus the largest measurement's forks.
Result<std::uint64_t> bytes_needed(const LoadedModel& model, std::span<const Base> bases,
                                   std::span<const Measurement> measurements) {
  std::vector<std::uint64_t> base_bytes(bases.size());
  std::uint64_t forks = 0;
  for (const Measurement& m : measurements) {
    const std::int64_t depth = m.figure.depth;
    KVASIR_RETURN_IF_ERROR(
        check_positions(*m.policy, model.options.chunk, model.config.context, depth + m.figure.tokens + 1));
    if (least_kv_bytes(model.kv_shape, *m.policy, std::min(m.policy->bound().value_or(depth), depth)) > memory_bound())
      return exhausted("a cache of {} tokens is more than this machine has memory for; give a smaller depth", depth)
          .about({"depths"});
    base_bytes[m.base] = static_cast<std::uint64_t>(bases[m.base].sequences) * planned_base_bytes(model, m);
    forks = std::max(forks, fork_bytes(model, m));
  }
  const std::uint64_t bytes = std::accumulate(base_bytes.begin(), base_bytes.end(), forks);
  if (bytes > memory_bound())
    return exhausted(
               "these measurements need {} bytes of KV memory, more than this machine has left ({}); measure less",
               bytes, memory_bound())
        .about({"depths", "batch", "prefill", "decode"});
  return bytes;
}

// Runs the passes of measurements and reports progress.
class Passes {
 public:
  Passes(const std::shared_ptr<LoadedModel>& model, const std::shared_ptr<KvCache>& cache,
         const std::function<bool(std::int64_t, std::int64_t)>& progress, std::int64_t work)
      : model_(model), cache_(cache), progress_(progress), work_(work) {}

  // Feeds `count` tokens to one sequence.
  Status feed(SequenceRunner& runner, std::int64_t count, Source source) {
    const std::vector<TokenId> tokens = some_tokens(count, model_->config.vocabulary);
    std::int64_t noted = runner.sequence().next_index();
    return runner.feed(
        tokens, model_->options.chunk,
        source == Source::kGenerated ? SequenceRunner::Logits::kAll : SequenceRunner::Logits::kLast,
        [&](std::int64_t, int, std::span<const float>) {
          const std::int64_t now = runner.sequence().next_index();
          return advance(now - std::exchange(noted, now));
        },
        source);
  }

  // Decodes `count` tokens of all sequences together, one token of each per pass.
  Status decode(std::span<const std::unique_ptr<SequenceRunner>> runners, std::int64_t count) {
    const std::vector<TokenId> tokens =
        some_tokens(count + static_cast<std::int64_t>(runners.size()), model_->config.vocabulary);
    Step step(model_, cache_);
    std::vector<StepRequest> requests(runners.size());
    std::vector<StepResult> results(runners.size());
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::size_t r = 0; r < runners.size(); ++r)
        requests[r] = {&runners[r]->whole(),
                       {std::span(tokens).subspan(static_cast<std::size_t>(t) + r, 1), Source::kGenerated}};
      KVASIR_RETURN_IF_ERROR(step.run(step.plan(requests), requests, results));
      for (const StepResult& result : results) KVASIR_RETURN_IF_ERROR(result.status);
      if (!advance(static_cast<std::int64_t>(runners.size()))) return Status(StatusCode::kCancelled, "stopped");
    }
    return {};
  }

  // Fills a base.
  Status prepare(Base& base, const RetentionPolicy& policy) {
    for (int b = 0; b < base.sequences; ++b) {
      base.runners.push_back(std::make_unique<SequenceRunner>(model_, cache_, policy.clone()));
      if (base.depth == 0) continue;
      SequenceRunner& runner = *base.runners.back();
      KVASIR_RETURN_IF_ERROR(feed(runner, base.depth, Source::kPrompt));
      KVASIR_RETURN_IF_ERROR(runner.step().repeat(runner.whole(), model_->options.chunk));
    }
    return {};
  }

  // Runs a measurement once, on forks of its base. Returns its seconds.
  Result<double> run(const Measurement& m, const Base& base) {
    std::vector<std::unique_ptr<SequenceRunner>> runners;
    for (int b = 0; b < m.figure.batch; ++b) {
      KVASIR_ASSIGN_OR_RETURN(runners.emplace_back(), base.runners[static_cast<std::size_t>(b)]->fork());
      KVASIR_RETURN_IF_ERROR(runners.back()->own_pages());
    }
    Status status;
    const double seconds = seconds_of([&] {
      status = runners.size() > 1
                   ? decode(runners, m.figure.tokens)
                   : feed(*runners.front(), m.figure.tokens, m.prefill() ? Source::kPrompt : Source::kGenerated);
    });
    KVASIR_RETURN_IF_ERROR(status);
    return seconds;
  }

 private:
  bool advance(std::int64_t tokens) {
    done_ += tokens;
    return !progress_ || progress_(done_, work_);
  }

  const std::shared_ptr<LoadedModel>& model_;
  const std::shared_ptr<KvCache>& cache_;
  const std::function<bool(std::int64_t, std::int64_t)>& progress_;
  std::int64_t work_ = 0;
  std::int64_t done_ = 0;
};

// Computes a measurement's figures from its repetitions. `first`: the measurement it is compared with.
void conclude(Measurement& m, const Measurement& first, const LoadedModel& model, const Base& base) {
  const auto tokens = static_cast<double>(m.figure.tokens * m.figure.batch);
  m.figure.median = tokens / median(m.seconds);
  m.figure.lowest = tokens / *std::ranges::max_element(m.seconds);
  m.figure.highest = tokens / *std::ranges::min_element(m.seconds);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < m.seconds.size(); ++i) ratios.push_back(m.seconds[i] / first.seconds[i]);
  m.figure.slowdown = median(std::move(ratios));
  m.figure.kv_bytes = static_cast<std::uint64_t>(m.figure.batch) *
                      static_cast<std::uint64_t>(base.runners.front()->sequence().mean_stored()) *
                      model.kv_shape.page.slot_bytes() * static_cast<std::uint64_t>(model.kv_shape.lanes());
  // A pass reads the weights once, and the keys and values of each sequence. How many experts a batch reads depends on
  // its tokens, and a policy that selects what it reads takes an unknown part of the cache: neither has a figure.
  const bool has_experts =
      std::ranges::any_of(model.config.layers, [](const auto& l) { return l.experts.has_value(); });
  const bool reads_all = base.runners.front()->policy().as<LeavesUnread>() == nullptr;
  if (!m.prefill() && reads_all && (m.figure.batch == 1 || !has_experts))
    m.figure.gigabytes_per_s = static_cast<double>(model.token_weight_bytes + m.figure.kv_bytes) * m.figure.median /
                               static_cast<double>(m.figure.batch) / 1e9;
}

}  // namespace

Result<Speed> measure_speed(const std::shared_ptr<LoadedModel>& model, const SpeedOptions& options,
                            const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  KVASIR_ASSIGN_OR_RETURN(std::vector<Measurement> measurements, make_measurements(options));
  std::vector<Base> bases = make_bases(measurements);
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t budget, bytes_needed(*model, bases, measurements));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache, new_cache(model, budget));
  KVASIR_ASSIGN_OR_RETURN(ReadBandwidth bandwidth, ReadBandwidth::make(*model->threads));
  std::int64_t work = 0;
  for (const Base& base : bases) work += base.sequences * base.depth;
  for (const Measurement& m : measurements)
    work += m.figure.batch * m.figure.tokens * (options.repeat + (m.prefill() ? 0 : 1));
  Passes passes(model, cache, progress, work);
  for (const Measurement& m : measurements)
    if (bases[m.base].runners.empty()) KVASIR_RETURN_IF_ERROR(passes.prepare(bases[m.base], *m.policy));

  std::vector<double> bandwidths;
  for (int repetition = 0; repetition <= options.repeat; ++repetition) {
    for (Measurement& m : measurements) {
      if (repetition == 0 && m.prefill()) continue;  // the first round warms up decoding
      KVASIR_ASSIGN_OR_RETURN(const double seconds, passes.run(m, bases[m.base]));
      if (repetition > 0) m.seconds.push_back(seconds);
    }
    bandwidths.push_back(bandwidth.measure());
  }
  Speed speed;
  speed.read_gigabytes_per_s = median(std::move(bandwidths));
  for (Measurement& m : measurements) {
    conclude(m, measurements[m.first], *model, bases[m.base]);
    speed.figures.push_back(m.figure);
  }
  return speed;
}

}  // namespace kvasir
