#include "retention/prompt_window.h"

#include <algorithm>

#include "base/status.h"
#include "retention/projected_values.h"

namespace kvasir {
namespace {

// Reads how the heads of a layer share what they keep.
Status read_layer_options(const PolicyOptions& given, PromptWindowOptions& options) {
  constexpr std::string_view kShares[] = {"head", "ada"};
  KVASIR_ASSIGN_OR_RETURN(const std::string share, given.get_choice("share", kShares));
  options.ada = share == "ada";
  KVASIR_ASSIGN_OR_RETURN(options.floor, given.get_double("floor", 0, 1));
  KVASIR_ASSIGN_OR_RETURN(options.chunk, given.get_int("chunk", 0, std::int64_t{1} << 24));
  KVASIR_ASSIGN_OR_RETURN(options.gate, get_switch(given, "gate"));
  if (options.ada && options.chunk > 0)
    return invalid_argument("policy '{}': with chunk={} all heads of a layer keep the same tokens; omit share=ada",
                            given.name(), options.chunk);
  if (options.floor != PromptWindowOptions{}.floor && !options.ada)
    return invalid_argument("policy '{}': floor={} belongs to share=ada; omit it", given.name(), options.floor);
  if (options.gate && options.chunk == 0)
    return invalid_argument("policy '{}': gate=on belongs to chunk=; give chunk=10", given.name());
  if (given.accepts("value")) {
    KVASIR_ASSIGN_OR_RETURN(options.projected, projects_values(given));
  }
  if (options.projected && options.chunk > 0)
    return invalid_argument("policy '{}': value=wo ranks single tokens; omit it, or chunk={}", given.name(),
                            options.chunk);
  return {};
}

ScoredPolicy::Traits with_window_traits(ScoredPolicy::Traits traits, const PromptWindowOptions& options) {
  traits.reduction = options.maximum ? MassReduction::kMax : MassReduction::kMean;
  traits.scope = PolicyScope::kHead;
  traits.whole = !options.blocks;
  if (options.projected) ++traits.values_per_token;
  if (!options.blocks && options.every == 0) traits.acts = ScoredPolicy::Acts::kAtPromptEnd;
  return traits;
}

}  // namespace

Result<PromptWindowOptions> PromptWindowOptions::read(const PolicyOptions& given, std::int64_t least_window) {
  PromptWindowOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.budget, given.get_budget("budget", kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.window, given.get_int("window", least_window, std::int64_t{1} << 24));
  KVASIR_ASSIGN_OR_RETURN(options.kernel, get_kernel(given));
  if (!options.budget.is_share() && options.window > options.budget.tokens)
    return invalid_argument("policy '{}': window={} is above budget={}; lower it", given.name(), options.window,
                            options.budget.tokens);
  KVASIR_ASSIGN_OR_RETURN(options.protect, given.get_protect(options.budget.tokens));
  if (!options.budget.is_share() && options.protect + options.window > options.budget.tokens)
    return invalid_argument("policy '{}': protect={} and window={} together are above budget={}; lower them",
                            given.name(), options.protect, options.window, options.budget.tokens);
  if (given.accepts("pool")) {
    constexpr std::string_view kPools[] = {"avg", "max"};
    KVASIR_ASSIGN_OR_RETURN(const std::string pool, given.get_choice("pool", kPools));
    options.max_pool = pool == "max";
  }
  if (given.accepts("agg")) {
    constexpr std::string_view kAggregations[] = {"mean", "max"};
    KVASIR_ASSIGN_OR_RETURN(const std::string aggregation, given.get_choice("agg", kAggregations));
    options.maximum = aggregation == "max";
  }
  if (given.accepts("share")) {
    KVASIR_RETURN_IF_ERROR(read_layer_options(given, options));
  }
  if (given.accepts("prompt")) {
    KVASIR_ASSIGN_OR_RETURN(options.blocks, get_blocks(given));
    KVASIR_ASSIGN_OR_RETURN(options.every, given.get_int("every", 0, kMostTokens));
    if (options.blocks && options.ada)
      return invalid_argument(
          "policy '{}': prompt=blocks bounds what a head holds, and share=ada does not; omit one of them",
          given.name());
  }
  return options;
}

PromptWindowPolicy::PromptWindowPolicy(Traits traits, const PromptWindowOptions& options)
    : ScoredPolicy(with_window_traits(std::move(traits), options)), options_(options) {}

void PromptWindowPolicy::begin(const TableLayout& layout) {
  ScoredPolicy::begin(layout);
  windows_.assign(static_cast<std::size_t>(layout.tables()), {});
}

std::optional<std::int64_t> PromptWindowPolicy::bound() const {
  if (!options_.blocks || options_.every == 0 || options_.budget.is_share()) return std::nullopt;
  return most_in_table() + options_.every;
}

// Returns the index behind the window that contains the step's row or follows it; nullopt: there is none.
std::optional<TokenIndex> PromptWindowPolicy::window_end(const Step& step) const {
  if (!acts_in(step.chunk.prompt)) return std::nullopt;
  if (step.chunk.prompt) return options_.blocks ? step.chunk.end() : step.prompt_end();
  if (options_.every == 0) return std::nullopt;
  const TokenIndex begin = windows_[static_cast<std::size_t>(step.table)].answer_begin;
  return begin + ((step.token() - begin) / options_.every + 1) * options_.every;
}

bool PromptWindowPolicy::wants(const PolicyChunk& chunk, int row, int) const {
  const Step step{chunk, 0, row};
  const std::optional<TokenIndex> end = window_end(step);
  return end && *end - step.token() <= options_.window;
}

std::int64_t PromptWindowPolicy::exact_prefix(std::int64_t n) const {
  return options_.blocks ? 0 : std::max<std::int64_t>(n - options_.window, 0);
}

void PromptWindowPolicy::end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) {
  ScoredPolicy::end_chunk(chunk, table, plan);
  if (chunk.prompt) windows_[static_cast<std::size_t>(table)].answer_begin = chunk.end();
}

void PromptWindowPolicy::score(ScoreList& list, const Step& step, std::span<const double> mass) {
  const std::optional<TokenIndex> end = window_end(step);
  if (!end || *end - step.token() > options_.window) return;
  Window& window = windows_[static_cast<std::size_t>(step.table)];
  if (window.end != *end || window.prompt != step.chunk.prompt) {
    window = {0, *end, step.chunk.prompt, window.answer_begin};
    for (int i = 0; i < list.values_per_token(); ++i) std::ranges::fill(list.values(i), 0.0);
    begin_window(step.table);
  }
  ++window.rows;
  // The tokens held when the window ends, less the window.
  const std::int64_t earlier = static_cast<std::int64_t>(mass.size()) + (*end - step.token() - 1) - options_.window;
  if (earlier > 0) add_row(list, step, window.rows, mass.first(static_cast<std::size_t>(earlier)));
}

void PromptWindowPolicy::add_row(ScoreList& list, const Step&, std::int64_t, std::span<const double> mass) {
  if (options_.maximum) return raise_to(list.values(), mass);
  double* scores = list.values().data();
  for (std::size_t i = 0; i < mass.size(); ++i) scores[i] += mass[i];
}

void PromptWindowPolicy::rank(ScoreList& list, std::int64_t rows, std::span<double> scores) {
  const double among = options_.maximum ? 1 : static_cast<double>(rows);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = list.values()[i] / among;
}

std::int64_t PromptWindowPolicy::part(int table, std::int64_t seen) const {
  const std::int64_t ranked = most_ranked(table, list(table).size(), seen);
  return std::min(std::max(ranked, options_.protect), earlier(table));
}

// Returns the pooled scores of the tokens before the window.
std::vector<double> PromptWindowPolicy::scores(int table) {
  std::vector<double> scores(static_cast<std::size_t>(earlier(table)));
  rank(list(table), rows_observed(table), scores);
  scores = pooled(scores, options_.kernel, options_.max_pool);
  weigh(table, scores);
  return scores;
}

bool PromptWindowPolicy::prunes(const PolicyChunk& chunk, int table) const {
  const ScoreList& list = this->list(table);
  const std::int64_t waiting = list.all() - list.size();
  const std::int64_t held = list.size() + (waiting > 0 ? waiting : chunk.rows);
  return ends_window({chunk, table, chunk.rows - 1}) && held > options_.budget.at(chunk.end());
}

// A table drops tokens only once the text has more of them than the budget; from then on any table may be due.
bool PromptWindowPolicy::wants_held(const PolicyChunk& chunk, int table) const {
  return options_.projected && ends_window({chunk, table, chunk.rows - 1}) &&
         chunk.end() > options_.budget.at(chunk.end());
}

void PromptWindowPolicy::read_held(const PolicyChunk& chunk, int table, HeldKv& kv) {
  ScoreList& list = this->list(table);
  enter(list, chunk);
  KVASIR_CHECK(list.all() == kv.tokens());
  kv.projected_norms(norms(table).first(static_cast<std::size_t>(list.all())));
}

void PromptWindowPolicy::keep_highest(int table, std::int64_t count) {
  const std::int64_t earlier = this->earlier(table);
  if (count >= earlier) return;
  std::vector<double> scores = this->scores(table);
  if (options_.projected) {
    const auto first = static_cast<std::size_t>(std::min(options_.protect, earlier));
    const std::span<double> ranked = std::span(scores).subspan(first);
    const std::int64_t places = std::max<std::int64_t>(count - options_.protect, 0);
    const std::int64_t half = certain_by_score(count + options_.window, options_.window + options_.protect);
    weigh_by_projection(ranked, norms(table).subspan(first, ranked.size()),
                        std::min(std::max(half, floor_ - options_.protect), places));
  }
  list(table).drop_lowest(earlier - count, options_.protect, earlier, scores);
}

void PromptWindowPolicy::prune(ScoreList& list, const Step& step) {
  if (!ends_window(step)) return;
  prepare(list, step.table);
  if (!options_.by_layer() && !layers_share()) keep_highest(step.table, part(step.table, step.seen()));
}

// Decides for the layer of the table `first`. REQUIRES: none of the layer's tables has dropped tokens in this chunk.
void PromptWindowPolicy::decide_for_layer(int first, std::int64_t seen) {
  const int heads = layout().per_layer;
  std::vector<std::vector<double>> scores;
  std::int64_t held = 0, earlier = 0;
  for (int head = 0; head < heads; ++head) {
    scores.push_back(this->scores(first + head));
    held += list(first + head).size();
    earlier += this->earlier(first + head);
  }
  // The number of tokens that a head would keep alone, if all heads held equally many.
  const std::int64_t equal = std::max(most_ranked(first, (held + heads - 1) / heads, seen), options_.protect);
  if (options_.ada) {
    const std::vector<std::span<const double>> all(scores.begin(), scores.end());
    floor_ = static_cast<std::int64_t>(options_.floor * static_cast<double>(equal));
    shares_ = share_among_heads(all, std::min(heads * equal, earlier), floor_, options_.protect);
    return;
  }
  // Where another part of a composition has dropped different tokens of the heads, each head decides alone.
  same_ = true;
  for (int head = 1; head < heads; ++head)
    same_ = same_ && std::ranges::equal(list(first).tokens(), list(first + head).tokens());
  if (!same_) return;
  std::vector<double>& sums = scores.front();
  for (int head = 1; head < heads; ++head)
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += scores[static_cast<std::size_t>(head)][i];
  stays_ = choose_chunks(sums, chunk_choice(part(first, seen)));
}

void PromptWindowPolicy::finish_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) {
  if (!ends_window({chunk, table, chunk.rows - 1}) || (!options_.by_layer() && !layers_share())) return;
  const int head = table % layout().per_layer;
  ScoreList& list = this->list(table);
  if (!options_.by_layer()) {
    keep_highest(table, part(table, chunk.end()));
  } else {
    if (head == 0) decide_for_layer(table, chunk.end());
    if (options_.ada) {
      keep_highest(table, shares_[static_cast<std::size_t>(head)]);
    } else {
      if (!same_) stays_ = choose_chunks(scores(table), chunk_choice(part(table, chunk.end())));
      const std::int64_t earlier = this->earlier(table);
      list.drop_if([&](std::int64_t place) { return place < earlier && !stays_[static_cast<std::size_t>(place)]; });
      if (head + 1 == layout().per_layer) stays_ = {};
    }
  }
  list.hand_over(plan);
}

Result<std::unique_ptr<RetentionPolicy>> PromptWindowPolicy::as_part(PolicyPart part) const {
  KVASIR_RETURN_IF_ERROR(check_blocks(options_.blocks, part, traits().spec));
  if (options_.every == 0 && part == PolicyPart::kWhileGenerating)
    return invalid_argument("policy '{}' acts at the end of a prompt only and cannot come second; put it before the +",
                            traits().spec);
  return ScoredPolicy::as_part(part);
}

void PromptWindowPolicy::save_table(int table, ByteWriter& out) const {
  const Window& window = windows_[static_cast<std::size_t>(table)];
  out.put(window.rows);
  out.put(window.end);
  if (options_.every == 0) return;
  out.put(std::uint8_t{window.prompt});
  out.put(window.answer_begin);
}

bool PromptWindowPolicy::restore_table(int table, ByteReader& in) {
  Window& window = windows_[static_cast<std::size_t>(table)];
  if (!in.get(window.rows) || !in.get(window.end)) return false;
  if (window.rows < 0 || window.rows > options_.window || window.end < 0) return false;
  window.prompt = true;
  if (options_.every == 0) return true;
  std::uint8_t prompt = 0;
  if (!in.get(prompt) || !in.get(window.answer_begin) || prompt > 1) return false;
  window.prompt = prompt == 1;
  // Windows end at the same token in all tables, and what came since the last one is all that exceeds the bound.
  return window.answer_begin >= 0 && window.answer_begin <= seen() &&
         window.answer_begin == windows_.front().answer_begin &&
         (!bound() || list(table).size() <= most_in_table() + (seen() - window.answer_begin) % options_.every);
}

Result<std::int64_t> get_kernel(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t kernel, given.get_int("kernel", 1, 1023));
  if (kernel % 2 == 0)
    return invalid_argument("policy '{}': kernel={} must be odd, so that it has a middle; give {} or {}", given.name(),
                            kernel, kernel - 1, kernel + 1);
  return kernel;
}

std::vector<double> pooled(std::span<const double> scores, std::int64_t kernel, bool max_pool) {
  std::vector<double> out(scores.size());
  const auto count = static_cast<std::int64_t>(scores.size());
  for (std::int64_t i = 0; i < count; ++i) {
    double total = 0;
    for (std::int64_t k = std::max<std::int64_t>(i - kernel / 2, 0); k <= std::min(i + kernel / 2, count - 1); ++k) {
      const double score = scores[static_cast<std::size_t>(k)];
      total = max_pool ? std::max(total, score) : total + score;
    }
    out[static_cast<std::size_t>(i)] = max_pool ? total : total / static_cast<double>(kernel);
  }
  return out;
}

}  // namespace kvasir
