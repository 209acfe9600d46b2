#include "tasks/generated/recipe.h"

#include <algorithm>

#include "base/counted.h"
#include "base/status.h"

namespace kvasir::generated {

std::string Prompt::whole() const {
  std::string text = context;
  for (const Turn& turn : turns) {
    text += turn.input + turn.answer_prefix;
    if (turns.size() == 1) continue;
    for (std::size_t i = 0; i < turn.outputs.size(); ++i) text += (i == 0 ? "" : ", ") + turn.outputs[i];
  }
  return text;
}

Result<std::int64_t> count_tokens(const Tokenizer& tokenizer, std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.encode(text, {.add_special = false}));
  return static_cast<std::int64_t>(tokens.size());
}

Result<FittedPrompt> fit_prompt(const Tokenizer& tokenizer, const Recipe& recipe, std::string_view task,
                                std::int64_t tokens) {
  FittedPrompt best;
  std::int64_t low = recipe.least;
  std::int64_t high = 2 * tokens + low + 1;  // a unit of haystack has at least half a token
  std::int64_t high_tokens = -1;             // not known yet
  const auto try_amount = [&](std::int64_t amount) -> Status {
    Prompt prompt = recipe.prompt(amount);
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t size, count_tokens(tokenizer, prompt.whole()));
    if (size > tokens) {
      high = amount;
      high_tokens = size;
    } else {
      low = amount;
      best = {std::move(prompt), size};
    }
    return {};
  };

  KVASIR_RETURN_IF_ERROR(try_amount(low));
  if (high == low)
    return invalid_argument("{} needs {} tokens or more with this tokenizer, not {}; allow longer prompts", task,
                            high_tokens, tokens)
        .about({"tokens"});
  const std::int64_t least_tokens = best.tokens;
  for (int step = 0; high - low > 1 && tokens - best.tokens > tokens / 256; ++step) {
    std::int64_t amount = low + (high - low) / 2;
    if (high_tokens < 0) {
      // Extrapolates from the smallest prompt, at most by a factor of 8, so that a wrong guess costs little.
      const std::int64_t grown = best.tokens - least_tokens;
      const std::int64_t reach = 8 * (low - recipe.least) + 16;
      amount = low + (grown == 0 ? reach : std::min(reach, (tokens - best.tokens) * (low - recipe.least) / grown + 1));
    } else if (step % 3 != 2) {  // every third step halves, which bounds the number of steps
      amount = low + (tokens - best.tokens) * (high - low) / (high_tokens - best.tokens);
    }
    KVASIR_RETURN_IF_ERROR(try_amount(std::clamp(amount, low + 1, high - 1)));
  }
  if (high_tokens < 0 && tokens - best.tokens > tokens / 256)
    return invalid_argument("this tokenizer makes only {} of {} bytes, so no prompt has {}; use another model",
                            counted(best.tokens, "token"), best.prompt.whole().size(), tokens);
  return best;
}

double draw_depth(Draws* draws) {
  return static_cast<double>((draws->below(40) * 200 + 39) / 78) / 100;
}

double depth_of(ItemInput* input) {
  const double drawn = draw_depth(&input->draws);  // drawn in any case: other draws do not depend on a given depth
  return input->depth.value_or(drawn);
}

}  // namespace kvasir::generated
