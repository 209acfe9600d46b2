// RULER's vt: a chain of five variables hidden among noise.
#include <algorithm>

#include "tasks/generated/recipe.h"

namespace kvasir::generated {
namespace {

constexpr std::size_t kVariables = 5;

struct Chain {
  std::vector<HiddenLine> lines;
  std::vector<std::string> variables;
  std::string value;
};

Chain draw_chain(int letters, Draws* draws) {
  Chain chain;
  while (chain.variables.size() < kVariables) {
    std::string name = draws->letters(letters, 'A');
    if (std::ranges::find(chain.variables, name) == chain.variables.end()) chain.variables.push_back(std::move(name));
  }
  chain.value = std::to_string(draws->between(10000, 99998));
  std::vector<double> depths;
  for (std::size_t i = 0; i < kVariables; ++i) depths.push_back(static_cast<double>(draws->below(1001)) / 1000);
  std::ranges::sort(depths);
  chain.lines.push_back({depths[0], "VAR " + chain.variables[0] + " = " + chain.value});
  for (std::size_t i = 1; i < kVariables; ++i)  // RULER's lines end with a space
    chain.lines.push_back({depths[i], "VAR " + chain.variables[i] + " = VAR " + chain.variables[i - 1] + " "});
  return chain;
}

Prompt chain_prompt(const Chain& chain, std::int64_t sentences) {
  Prompt prompt;
  prompt.context = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n" +
                   lines_with(noise_lines(sentences), chain.lines);
  Turn turn;
  turn.input = "\nQuestion: Find all variables that are assigned the value " + chain.value + " in the text above.";
  turn.answer_prefix = " Answer: According to the chain(s) of variable assignment in the text above, " +
                       std::to_string(kVariables) + " variables are assigned the value " + chain.value + ", they are: ";
  turn.outputs = chain.variables;
  prompt.turns.push_back(std::move(turn));
  return prompt;
}

// Returns a solved example of at most 500 tokens and a quarter of the prompt, or the shortest one.
std::string draw_example(ItemInput* input) {
  const Chain chain = draw_chain(3, &input->draws);
  const Recipe recipe{[&](std::int64_t lines) { return chain_prompt(chain, 5 * lines); }, 5};
  const auto fitted = fit_prompt(input->tokenizer, recipe, "vt",
                                 std::min<std::int64_t>(500, std::max<std::int64_t>(input->tokens, 0) / 4));
  std::string text = (fitted.ok() ? fitted->prompt : recipe.prompt(recipe.least)).whole();
  for (const std::string& variable : chain.variables) text += " " + variable;
  return text + "\n\n";
}

}  // namespace

Recipe variable_tracking(ItemInput input) {
  std::string example = draw_example(&input);
  Chain chain = draw_chain(5, &input.draws);
  return {[example = std::move(example), chain = std::move(chain)](std::int64_t sentences) {
            Prompt prompt = chain_prompt(chain, sentences);
            prompt.context = example + prompt.context;
            return prompt;
          },
          25};
}

}  // namespace kvasir::generated
