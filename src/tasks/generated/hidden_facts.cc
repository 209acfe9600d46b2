// Something short hidden in a text: a pass key, a secret number, a passage, the steps of a calculation.
#include <algorithm>

#include "tasks/generated/recipe.h"
#include "tasks/generated/words.h"

namespace kvasir::generated {

// InfiniteBench's passkey, after Landmark Attention's.
Recipe passkey(ItemInput input) {
  const double depth = depth_of(&input);
  const std::string key = input.draws.digits(5);
  const std::string line = "The pass key is " + key + ". Remember it. " + key + " is the pass key.";
  return {[=](std::int64_t sentences) {
            return Prompt{
                "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
                "I will quiz you about the important information.\n\n" +
                    lines_with(noise_lines(sentences), {{depth, line}}),
                {{"\n\n\nWhat is the pass key?\n\n", "The pass key is", {key}}}};
          },
          0, depth};
}

// The facts of eval/needle.h, for which the bundled model was trained.
Recipe secret_number(ItemInput input) {
  const double depth = depth_of(&input);
  std::string name(input.draws.pick(adjectives().first(kTrainedAdjectives)));
  name += ' ';
  name += input.draws.pick(nouns().first(kTrainedNouns));
  const std::string number = input.draws.digits(5);
  const std::int64_t begin = input.filler.draw_begin(&input.draws);
  const std::string fact = "The secret number of the " + name + " is";
  return {[=, &filler = input.filler](std::int64_t words) {
            return Prompt{filler.with_lines(begin, words, {{depth, "\n" + fact + " " + number + ".\n"}}),
                          {{"\n", fact, {number}}}};
          },
          0, depth};
}

Recipe copying(ItemInput input) {
  constexpr int kWords = 24;
  const double depth = depth_of(&input);
  std::string passage;
  for (int i = 0; i < kWords; ++i) {
    if (i > 0) passage += ' ';
    passage += input.draws.pick(i % 2 == 0 ? adjectives() : nouns());
  }
  const std::int64_t begin = input.filler.draw_begin(&input.draws);
  return {[=, &filler = input.filler](std::int64_t words) {
            return Prompt{
                "A passage between the marks [PASSAGE] and [END] is hidden within the following text. I will ask you "
                "to repeat it word for word.\n" +
                    filler.with_lines(begin, words, {{depth, "\n[PASSAGE] " + passage + " [END]\n"}}),
                {{"\nRepeat the passage between the marks word for word.", " The passage is:", {passage}}}};
          },
          0, depth};
}

Recipe arithmetic_chain(ItemInput input) {
  constexpr int kSteps = 8;
  constexpr std::int64_t kMost = 999;  // no value on the way is larger
  Draws& draws = input.draws;
  std::vector<double> depths;
  for (int i = 0; i < kSteps; ++i) depths.push_back(static_cast<double>(draws.below(1001)) / 1000);
  std::ranges::sort(depths);
  std::int64_t value = draws.between(2, 20);
  std::vector<HiddenLine> steps{{depths[0], "Step 1: Start with " + std::to_string(value) + "."}};
  for (int i = 1; i < kSteps; ++i) {
    const std::int64_t operation = draws.below(3);
    const std::int64_t factor = draws.between(2, 3);
    const std::int64_t term = draws.between(1, 20);
    std::string text = "Step " + std::to_string(i + 1) + ": ";
    if (operation == 2 && value > 1 && value * factor + kSteps * 20 <= kMost) {
      value *= factor;
      text += "Multiply by " + std::to_string(factor) + ".";
    } else if (operation == 1 && value > term) {
      value -= term;
      text += "Subtract " + std::to_string(term) + ".";
    } else {
      value += term;
      text += "Add " + std::to_string(term) + ".";
    }
    steps.push_back({depths[static_cast<std::size_t>(i)], std::move(text)});
  }
  const std::int64_t begin = input.filler.draw_begin(&draws);
  return {[=, &filler = input.filler](std::int64_t words) {
    return Prompt{"The steps of a calculation are hidden within the following text. Follow them in their order.\n" +
                      filler.with_lines(begin, words, steps),
                  {{"\nWhat is the result after step " + std::to_string(kSteps) + "?",
                    " The result after step " + std::to_string(kSteps) + " is",
                    {std::to_string(value)}}}};
  }};
}

}  // namespace kvasir::generated
