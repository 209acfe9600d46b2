// Pairs of random UUIDs as JSON: the value of one key, of several, or of another one each turn.
#include <cmath>

#include "tasks/generated/recipe.h"

namespace kvasir::generated {
namespace {

std::string quoted_pair(Draws* draws) {
  const std::string key = draws->uuid();
  return "\"" + key + "\": \"" + draws->uuid() + "\"";
}

struct AskedPair {
  std::string key;
  std::string value;
  double depth = 0;
};

struct JsonPairs {
  std::vector<HiddenLine> asked;
  std::uint64_t seed = 0;

  std::string text(std::int64_t others) const {
    std::vector<std::string> pairs;
    pairs.reserve(static_cast<std::size_t>(others));
    for (std::int64_t i = 0; i < others; ++i) {
      Draws draws = Draws::of_part(seed, i);
      pairs.push_back(quoted_pair(&draws));
    }
    // Places are those of lines, which then become the members of one object.
    std::string lines = lines_with(pairs, asked);
    std::string text = "JSON data:\n{";
    for (const char c : lines)
      if (c == '\n') {
        text += ", ";
      } else {
        text += c;
      }
    return text + "}";
  }
};

}  // namespace

Recipe key_values(KeyValues asked, ItemInput input) {
  constexpr int kKeys = 4;
  constexpr int kTurns = 5;
  const int count = asked == KeyValues::kOne ? 1 : asked == KeyValues::kSeveral ? kKeys : kTurns;
  JsonPairs json;
  json.seed = input.draws.next();
  std::vector<AskedPair> pairs;
  for (int i = 0; i < count; ++i) {
    const std::string key = input.draws.uuid();
    const std::string value = input.draws.uuid();
    double depth = static_cast<double>(input.draws.below(1001)) / 1000;
    if (asked == KeyValues::kOne) depth = input.depth.value_or(depth);
    pairs.push_back({key, value, depth});
    json.asked.push_back({depth, "\"" + key + "\": \"" + value + "\""});
  }

  Recipe recipe;
  std::string before = "Extract the value corresponding to the specified key in the JSON object below.\n\n";
  std::vector<Turn> turns;
  if (asked == KeyValues::kSeveral) {
    before =
        "Extract the values corresponding to the specified keys in the JSON object below, in the order of the "
        "keys.\n\n";
    std::string keys;
    std::vector<std::string> values;
    for (const AskedPair& pair : pairs) {
      keys += (keys.empty() ? "\"" : ", \"") + pair.key + "\"";
      values.push_back(pair.value);
    }
    turns.push_back(
        {"\n\n\nKeys: " + keys + "\n", "The values associated with the specified keys are: ", std::move(values)});
  } else {
    for (const AskedPair& pair : pairs)
      turns.push_back(
          {"\n\n\nKey: \"" + pair.key + "\"\n", "The value associated with the specified key is: ", {pair.value}});
  }
  if (asked == KeyValues::kOne) recipe.depth = pairs.front().depth;
  recipe.prompt = [before, turns, json](std::int64_t others) { return Prompt{before + json.text(others), turns}; };
  return recipe;
}

}  // namespace kvasir::generated
