// RULER's needles in a haystack: niah_single, niah_multikey, niah_multivalue, niah_multiquery.
#include <algorithm>
#include <cmath>

#include "tasks/generated/recipe.h"

namespace kvasir::generated {
namespace {

std::string draw_text(NeedleText kind, Draws* draws) {
  switch (kind) {
    case NeedleText::kNumber: return draws->number(7);
    case NeedleText::kWords: return draws->word_pair();
    case NeedleText::kUuid: return draws->uuid();
  }
  return {};
}

// Draws a text that is not in `taken`, and adds it there.
std::string draw_new(NeedleText kind, Draws* draws, std::vector<std::string>* taken) {
  std::string text = draw_text(kind, draws);
  while (std::ranges::find(*taken, text) != taken->end()) text = draw_text(kind, draws);
  taken->push_back(text);
  return text;
}

std::string plural(NeedleText kind) {
  return kind == NeedleText::kUuid ? "uuids" : kind == NeedleText::kWords ? "words" : "numbers";
}

std::string needle(NeedleText kind, const std::string& key, const std::string& value) {
  return "One of the special magic " + plural(kind) + " for " + key + " is: " + value + ".";
}

// "a", "a, and b", "a, b, and c"
std::string listed(const std::vector<std::string>& names) {
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) text += (i + 1 == names.size() ? ", and " : ", ") + names[i];
  return text;
}

// Depths of `count` needles. Those in an essay are different.
std::vector<double> draw_depths(bool essay, std::size_t count, Draws* draws) {
  std::vector<double> depths;
  while (depths.size() < count) {
    const double depth = essay ? draw_depth(draws) : static_cast<double>(draws->below(1001)) / 1000;
    if (!essay || std::ranges::find(depths, depth) == depths.end()) depths.push_back(depth);
  }
  return depths;
}

struct Needles {
  NeedleKind kind;
  std::vector<HiddenLine> lines;
  std::vector<std::string> taken;  // keys and values that the haystack must not have
  std::uint64_t haystack_seed = 0;
  Turn turn;
  std::string before;
};

std::string haystack_with(const Needles& made, const Filler& filler, std::int64_t amount) {
  if (made.kind.haystack == NeedleHaystack::kEssay) return filler.with_lines(0, amount, made.lines);
  if (made.kind.haystack == NeedleHaystack::kNoise) return lines_with(noise_lines(amount), made.lines);
  std::vector<std::string> lines;
  lines.reserve(static_cast<std::size_t>(amount));
  for (std::int64_t i = 0; i < amount; ++i) {
    Draws draws = Draws::of_part(made.haystack_seed, i);
    std::vector<std::string> taken = made.taken;
    const std::string key = draw_new(made.kind.key, &draws, &taken);
    lines.push_back(needle(made.kind.value, key, draw_new(made.kind.value, &draws, &taken)));
  }
  return lines_with(lines, made.lines);
}

}  // namespace

Recipe needles(const NeedleKind& kind, ItemInput input) {
  Draws& draws = input.draws;
  Needles made{kind};
  made.haystack_seed = draws.next();
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;
  for (int i = 0; i < kind.keys; ++i) {
    keys.push_back(draw_new(kind.key, &draws, &made.taken));
    values.emplace_back();
    for (int j = 0; j < kind.values; ++j) values.back().push_back(draw_new(kind.value, &draws, &made.taken));
  }
  std::vector<std::string> asked;
  const std::vector<std::int64_t> asked_keys =
      draws.distinct(static_cast<std::int64_t>(keys.size()), static_cast<std::size_t>(kind.queries));
  for (const std::int64_t key : asked_keys) {
    asked.push_back(keys[static_cast<std::size_t>(key)]);
    for (const std::string& value : values[static_cast<std::size_t>(key)]) made.turn.outputs.push_back(value);
  }

  const bool one_answer = made.turn.outputs.size() == 1;
  const bool essay = kind.haystack == NeedleHaystack::kEssay;
  std::vector<double> depths = draw_depths(essay, static_cast<std::size_t>(kind.keys * kind.values), &draws);
  Recipe recipe;
  if (one_answer) {
    double& depth = depths[static_cast<std::size_t>(asked_keys.front())];
    if (input.depth) depth = *input.depth;
    recipe.depth = depth;
  }
  auto depth = depths.begin();
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (const std::string& value : values[i]) made.lines.push_back({*depth++, needle(kind.value, keys[i], value)});

  // RULER's templates, which speak of one value or of several.
  std::string type = plural(kind.value);
  if (one_answer) type.pop_back();
  const std::string things = "special magic " + type;
  const std::string about = things + " for " + listed(asked) + " mentioned in the provided text";
  made.before = (one_answer ? "A " + things + " is" : "Some " + things + " are") +
                " hidden within the following text. Make sure to memorize it. I will quiz you about the " + type +
                " afterwards.\n";
  made.turn.input = (one_answer ? "\nWhat is the " : "\nWhat are all the ") + about + "?";
  made.turn.answer_prefix = " The " + about + (one_answer ? " is" : " are");

  recipe.prompt = [made = std::move(made), &filler = input.filler](std::int64_t amount) {
    return Prompt{made.before + haystack_with(made, filler, amount), {made.turn}};
  };
  return recipe;
}

}  // namespace kvasir::generated
