// Measures the cost of grammars: the time to compile 500 schemas for a model's vocabulary, and the time of each token's
// mask and step along random texts. The first text of a schema meets all places for the first time; the others find
// some masks made.
//
//   grammar_bench MODEL [--schemas FILE] [--texts N] [--tokens N] [--json]
//
// Tokens are drawn from the masks, three of ten from those that tend to end a string, list or object. Printed: mean,
// median, 99%, 99.9% and the most, of compilations in milliseconds and of tokens in microseconds; the slowest schemas.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/reader.h"
#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "model/vocabulary_from_gguf.h"
#include "text/tokenizer.h"

namespace kvasir::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct GrammarOptions {
  std::string model;
  std::string schemas = "tests/grammar/schemas/schemas.jsonl";
  int texts = 4;
  int tokens = 100;  // of one text at most
  bool json = false;
};

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Times {
  std::vector<double> all;

  nlohmann::ordered_json summary() {
    std::sort(all.begin(), all.end());
    if (all.empty()) return nullptr;
    double sum = 0;
    for (const double each : all) sum += each;
    const auto at = [&](double part) {
      return all[std::min(all.size() - 1, static_cast<std::size_t>(part * double(all.size())))];
    };
    return {{"count", all.size()}, {"mean", sum / double(all.size())},
            {"p50", at(0.5)},      {"p99", at(0.99)},
            {"p99.9", at(0.999)},  {"max", all.back()}};
  }
};

struct GrammarTimes {
  Times compile, first_mask, mask, accept;
};

bool closes(std::string_view bytes) {
  return !bytes.empty() && (std::string_view("\"}],").find(bytes.front()) != std::string_view::npos || bytes == ":" ||
                            bytes == "0" || bytes == "true" || bytes == "null");
}

// Follows one random text.
void walk(GrammarMatcher matcher, std::mt19937& random, int tokens, Times& masks, Times& accepts) {
  const grammar::TokenTrie& trie = matcher.grammar().trie();
  std::vector<TokenId> next, closing;
  for (int i = 0; i < tokens; ++i) {
    const Clock::time_point begin = Clock::now();
    const auto mask = matcher.mask();
    masks.all.push_back(microseconds(begin));
    if (!mask.ok()) return;
    next.clear();
    closing.clear();
    for (std::size_t word = 0; word < (*mask)->size(); ++word)
      for (std::uint64_t bits = (**mask)[word]; bits != 0; bits &= bits - 1) {
        const auto token = static_cast<TokenId>(word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)));
        if (trie.bytes_of(token).empty()) continue;  // the end
        next.push_back(token);
        if (closes(trie.bytes_of(token))) closing.push_back(token);
      }
    if (next.empty() || (matcher.complete() && random() % 10 < 3)) return;
    const std::vector<TokenId>& from = !closing.empty() && random() % 10 < 3 ? closing : next;
    const TokenId token = from[random() % from.size()];
    const Clock::time_point accepting = Clock::now();
    if (!matcher.accept(token).ok()) return;
    accepts.all.push_back(microseconds(accepting));
  }
}

int run(const GrammarOptions& options) {
  const auto file = gguf::File::open(options.model);
  if (!file.ok()) return fmt::print(stderr, "grammar_bench: {}\n", file.status().message()), 1;
  auto vocabulary = vocabulary_from_gguf(*file);
  if (!vocabulary.ok()) return fmt::print(stderr, "grammar_bench: {}\n", vocabulary.status().message()), 1;
  const auto tokenizer = make_tokenizer(std::move(*vocabulary));
  if (!tokenizer.ok()) return fmt::print(stderr, "grammar_bench: {}\n", tokenizer.status().message()), 1;
  std::ifstream schemas(options.schemas);
  if (!schemas) return fmt::print(stderr, "grammar_bench: cannot read {}\n", options.schemas), 1;

  const GrammarCompiler compiler(**tokenizer);
  GrammarSource any;
  (void)compiler.compile(any);  // makes the trie of the vocabulary
  std::mt19937 random(1);
  GrammarTimes times;
  std::vector<std::pair<double, std::string>> slowest;
  for (std::string line; std::getline(schemas, line);) {
    const auto each = nlohmann::ordered_json::parse(line);
    GrammarSource source;
    source.kind = GrammarSource::Kind::kJsonSchema;
    source.text = each["schema"].dump();
    const Clock::time_point begin = Clock::now();
    const auto grammar = compiler.compile(source);
    times.compile.all.push_back(microseconds(begin) / 1000);
    if (!grammar.ok()) {
      fmt::print(stderr, "grammar_bench: {} is refused: {}\n", each["name"].get<std::string>(),
                 grammar.status().message());
      continue;
    }
    const std::size_t before = times.first_mask.all.size();
    for (int text = 0; text < options.texts; ++text)
      walk(GrammarMatcher(*grammar), random, options.tokens, text == 0 ? times.first_mask : times.mask, times.accept);
    const double most = *std::max_element(times.first_mask.all.begin() + static_cast<std::ptrdiff_t>(before),
                                          times.first_mask.all.end());
    slowest.emplace_back(most, each["name"]);
  }
  const std::vector<std::pair<const char*, Times*>> rows = {{"compile, ms", &times.compile},
                                                            {"mask, first text, us", &times.first_mask},
                                                            {"mask, further texts, us", &times.mask},
                                                            {"accept, us", &times.accept}};
  std::sort(slowest.rbegin(), slowest.rend());
  slowest.resize(std::min<std::size_t>(slowest.size(), 5));
  if (options.json) {
    nlohmann::ordered_json out = {{"model", options.model}, {"tokens", (*tokenizer)->vocabulary().pieces.size()}};
    for (const auto& [name, row] : rows) out[name] = row->summary();
    for (const auto& [time, name] : slowest) out["slowest masks, us"][name] = time;
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  fmt::print("{} tokens\n\n| {:24} | {:>7} | {:>8} | {:>8} | {:>8} | {:>8} | {:>8} |\n",
             (*tokenizer)->vocabulary().pieces.size(), "", "count", "mean", "p50", "p99", "p99.9", "max");
  fmt::print("|{:-<26}|{:-<9}|{:-<10}|{:-<10}|{:-<10}|{:-<10}|{:-<10}|\n", "", "", "", "", "", "", "");
  for (const auto& [name, row] : rows) {
    const auto sums = row->summary();
    fmt::print("| {:24} | {:>7} |", name, sums["count"].get<int>());
    for (const char* column : {"mean", "p50", "p99", "p99.9", "max"})
      fmt::print(" {:>8.1f} |", sums[column].get<double>());
    fmt::print("\n");
  }
  fmt::print("\nslowest masks:");
  for (const auto& [time, name] : slowest) fmt::print(" {} {:.0f} us;", name, time);
  fmt::print("\n");
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int count, char** arguments) {
  kvasir::bench::GrammarOptions options;
  CLI::App program{"Times of grammars over many schemas and a model's vocabulary."};
  program.add_option("model", options.model, "A GGUF file, for its vocabulary")->required();
  program.add_option("--schemas", options.schemas, "Lines of {\"name\", \"schema\"}")->capture_default_str();
  program.add_option("--texts", options.texts, "Texts of each schema")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  program.add_option("--tokens", options.tokens, "Tokens of a text at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  program.add_flag("--json", options.json);
  CLI11_PARSE(program, count, arguments);
  return kvasir::bench::run(options);
}
