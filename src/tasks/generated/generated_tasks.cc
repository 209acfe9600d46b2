#include "tasks/generated/generated_tasks.h"

#include <algorithm>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "tasks/generated/recipe.h"

namespace kvasir {
namespace {

using generated::ItemInput;
using generated::NeedleHaystack;
using generated::NeedleKind;
using generated::NeedleText;
using generated::Recipe;

struct KnownTask {
  GeneratedTask task;
  Recipe (*recipe)(ItemInput input);
};

constexpr NeedleKind kSingle1{.haystack = NeedleHaystack::kNoise};
constexpr NeedleKind kSingle2{};
constexpr NeedleKind kSingle3{.value = NeedleText::kUuid};
constexpr NeedleKind kMultiKey1{.keys = 4};
constexpr NeedleKind kMultiKey2{.haystack = NeedleHaystack::kNeedles};
constexpr NeedleKind kMultiKey3{
    .haystack = NeedleHaystack::kNeedles, .key = NeedleText::kUuid, .value = NeedleText::kUuid};
constexpr NeedleKind kMultiValue{.values = 4};
constexpr NeedleKind kMultiQuery{.keys = 4, .queries = 4};

template <const NeedleKind& kind>
Recipe needles_of(ItemInput input) {
  return generated::needles(kind, std::move(input));
}

template <bool two_hops>
Recipe documents_of(ItemInput input) {
  return generated::documents(two_hops, std::move(input));
}

template <generated::KeyValues asked>
Recipe key_values_of(ItemInput input) {
  return generated::key_values(asked, std::move(input));
}

// Numbers of answer tokens: RULER's, and for the others enough for the answer's digits.
constexpr KnownTask kKnown[] = {
    {{"niah_single_1", "the number of a key, in repeated noise", false, true, false, 128}, needles_of<kSingle1>},
    {{"niah_single_2", "the number of a key, in a text", false, true, true, 128}, needles_of<kSingle2>},
    {{"niah_single_3", "the UUID of a key, in a text", false, true, true, 128}, needles_of<kSingle3>},
    {{"niah_multikey_1", "the number of one of four keys, in a text", false, true, true, 128}, needles_of<kMultiKey1>},
    {{"niah_multikey_2", "the number of a key, among those of others", false, true, false, 128},
     needles_of<kMultiKey2>},
    {{"niah_multikey_3", "the UUID of a UUID, among those of others", false, true, false, 128}, needles_of<kMultiKey3>},
    {{"niah_multivalue", "the four numbers of a key, in a text", false, false, true, 128}, needles_of<kMultiValue>},
    {{"niah_multiquery", "the numbers of four keys, in a text", false, false, true, 128}, needles_of<kMultiQuery>},
    {{"vt", "the five variables of a chain of assignments, in noise", false, false, false, 30},
     generated::variable_tracking},
    {{"cwe", "the ten most common words of a list", false, false, false, 120}, generated::common_words},
    {{"fwe", "the three most frequent words of a coded text", false, false, false, 50}, generated::frequent_words},
    {{"qa_1", "a question that one of many documents answers", false, false, false, 32}, documents_of<false>},
    {{"qa_2", "a question that two of many documents answer together", false, false, false, 32}, documents_of<true>},
    {{"passkey", "five digits, in repeated noise", false, true, false, 16}, generated::passkey},
    {{"kv_retrieval", "the value of a key, in a JSON object of UUIDs", false, true, false, 64},
     key_values_of<generated::KeyValues::kOne>},
    {{"kv_multi", "the values of four keys, in a JSON object of UUIDs", false, false, false, 256},
     key_values_of<generated::KeyValues::kSeveral>},
    {{"kv_turns", "the value of another key in each of five turns", true, false, false, 64},
     key_values_of<generated::KeyValues::kTurns>},
    {{"copying", "a passage of 24 words, repeated word for word", false, true, true, 128}, generated::copying},
    {{"arithmetic_chain", "the result of eight steps of a calculation, in a text", false, false, true, 16,
      "infinitebench_passkey"},
     generated::arithmetic_chain},
    {{"needle", "a secret number, in a text; the fact of `kvasir eval needle`", false, true, true, 16},
     generated::secret_number},
};

std::string names_of(bool (*wanted)(const GeneratedTask&)) {
  std::string names;
  for (const GeneratedTask& task : generated_tasks())
    if (wanted(task)) names += (names.empty() ? "" : ", ") + std::string(task.name);
  return names;
}

const KnownTask* find_task(std::string_view name) {
  const auto* found = std::ranges::find_if(kKnown, [&](const KnownTask& known) { return known.task.name == name; });
  return found == std::end(kKnown) ? nullptr : found;
}

Status check(const GenerateItems& options, const KnownTask* known) {
  if (known == nullptr)
    return invalid_argument("there is no task '{}'; choose one of {}", options.task,
                            names_of([](const GeneratedTask&) { return true; }))
        .about({"task"});
  if (options.tokens < 1 || options.tokens > GenerateItems::kMostTokens)
    return invalid_argument("{} is outside 1 to {} tokens", options.tokens, GenerateItems::kMostTokens)
        .about({"tokens"});
  if (!options.depths.empty() && !known->task.depth)
    return invalid_argument("{} has no depth; leave the depths out, or choose one of {}", options.task,
                            names_of([](const GeneratedTask& task) { return task.depth; }))
        .about({"depths", "task"});
  for (const double depth : options.depths)
    if (!(depth >= 0 && depth <= 1))
      return invalid_argument("a depth of {} is outside 0 to 1", depth).about({"depths"});
  const auto depths = static_cast<std::int64_t>(std::max<std::size_t>(options.depths.size(), 1));
  if (options.count < 1 || depths > GenerateItems::kMostItems || options.count > GenerateItems::kMostItems / depths)
    return invalid_argument("a count of {} with {} is outside 1 to {} items in all", options.count,
                            counted(depths, "depth"), GenerateItems::kMostItems)
        .about({"count", "depths"});
  return {};
}

std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

GeneratedItem as_json(const generated::Turn& turn, const std::string& context, GeneratedItem item) {
  item["input"] = context + turn.input;
  item["question"] = turn.input;
  item["outputs"] = turn.outputs;
  item["answer_prefix"] = turn.answer_prefix;
  return item;
}

}  // namespace

const GeneratedTask* find_generated_task(std::string_view name) {
  const KnownTask* known = find_task(name);
  return known == nullptr ? nullptr : &known->task;
}

std::span<const GeneratedTask> generated_tasks() {
  static const std::vector<GeneratedTask> tasks = [] {
    std::vector<GeneratedTask> all;
    for (const KnownTask& known : kKnown) all.push_back(known.task);
    return all;
  }();
  return tasks;
}

struct GeneratedItems::State {
  const Tokenizer& tokenizer;
  const KnownTask& known;
  std::int64_t tokens = 0;
  std::int64_t count = 0;  // of trials
  std::uint64_t seed = 0;
  std::vector<double> depths;
  generated::Filler filler;
};

GeneratedItems::GeneratedItems(std::unique_ptr<const State> state) : state_(std::move(state)) {}
GeneratedItems::GeneratedItems(GeneratedItems&&) noexcept = default;
GeneratedItems& GeneratedItems::operator=(GeneratedItems&&) noexcept = default;
GeneratedItems::~GeneratedItems() = default;

Result<GeneratedItems> GeneratedItems::create(const Tokenizer& tokenizer, const GenerateItems& options) {
  const KnownTask* known = find_task(options.task);
  KVASIR_RETURN_IF_ERROR(check(options, known));
  generated::Filler filler;
  if (known->task.filler) {
    KVASIR_ASSIGN_OR_RETURN(filler, generated::Filler::create(options.filler));
  }
  return GeneratedItems(std::make_unique<const State>(
      State{tokenizer, *known, options.tokens, options.count, options.seed, options.depths, std::move(filler)}));
}

std::int64_t GeneratedItems::count() const {
  return state_->count * static_cast<std::int64_t>(std::max<std::size_t>(state_->depths.size(), 1));
}

Result<GeneratedItem> GeneratedItems::item(std::int64_t index) const {
  KVASIR_CHECK(index >= 0 && index < count());
  const auto depths = static_cast<std::int64_t>(std::max<std::size_t>(state_->depths.size(), 1));
  std::uint64_t seed = hash_of(state_->known.task.name);
  for (const std::uint64_t part :
       {state_->seed, static_cast<std::uint64_t>(state_->tokens), static_cast<std::uint64_t>(index / depths)})
    seed = SplitMix(seed ^ SplitMix(part).next()).next();
  ItemInput input{state_->tokenizer, state_->filler, generated::Draws(seed), state_->tokens, {}};
  if (!state_->depths.empty()) input.depth = state_->depths[static_cast<std::size_t>(index % depths)];

  const Recipe recipe = state_->known.recipe(std::move(input));
  KVASIR_ASSIGN_OR_RETURN(const generated::FittedPrompt fitted,
                          fit_prompt(state_->tokenizer, recipe, state_->known.task.name, state_->tokens));
  GeneratedItem item;
  item["index"] = index;
  if (state_->known.task.turns) {
    item["context"] = fitted.prompt.context;
    item["turns"] = GeneratedItem::array();
    for (const generated::Turn& turn : fitted.prompt.turns) item["turns"].push_back(as_json(turn, "", {}));
  } else {
    item = as_json(fitted.prompt.turns.front(), fitted.prompt.context, std::move(item));
  }
  item["length"] = fitted.tokens;
  if (recipe.depth) item["depth"] = *recipe.depth;
  return item;
}

Result<std::vector<GeneratedItem>> generate_items(const Tokenizer& tokenizer, const GenerateItems& options) {
  KVASIR_ASSIGN_OR_RETURN(const GeneratedItems items, GeneratedItems::create(tokenizer, options));
  std::vector<GeneratedItem> all;
  for (std::int64_t i = 0; i < items.count(); ++i) {
    KVASIR_ASSIGN_OR_RETURN(GeneratedItem item, items.item(i));
    all.push_back(std::move(item));
  }
  return all;
}

}  // namespace kvasir
