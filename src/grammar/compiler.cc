#include "grammar/compiler.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/ordered_json.h"
#include "base/status.h"
#include "grammar/machine.h"
#include "grammar/matcher.h"
#include "grammar/sources/gbnf.h"
#include "grammar/sources/json_schema.h"
#include "grammar/sources/json_text.h"
#include "grammar/sources/regex.h"
#include "text/utf8.h"

namespace kvasir {
namespace grammar {
namespace {

constexpr std::size_t kLongestSchema = 1 << 20;
constexpr std::size_t kDeepestSchemaText = 128;
constexpr std::size_t kMostKeys = 20'000;
constexpr std::size_t kMostChoices = 10'000;
constexpr int kNumberOverflow = 406;  // of the JSON parser's exceptions

}  // namespace

Result<nlohmann::ordered_json> parse_schema(const std::string& text) {
  if (text.size() > kLongestSchema)
    return exhausted("the schema has {} bytes; at most {} are allowed", text.size(), kLongestSchema);
  ParsedOrderedJson parsed = parse_ordered_json(text, {.levels = kDeepestSchemaText, .keys = kMostKeys});
  switch (parsed.end) {
    case ParsedOrderedJson::End::kTooDeep:
      return exhausted("the schema nests deeper than {} levels", kDeepestSchemaText);
    case ParsedOrderedJson::End::kTooManyKeys:
      return exhausted("the schema has more than {} keywords and properties", kMostKeys);
    case ParsedOrderedJson::End::kMalformed:
      // The parser's words for a number that no double holds; all before it is valid.
      if (parsed.error_id == kNumberOverflow) KVASIR_RETURN_IF_ERROR(check_numbers(text));
      return invalid_argument("the schema is not valid JSON: {:.200}", parsed.error);
    case ParsedOrderedJson::End::kRepeatedKey:  // allowed
    case ParsedOrderedJson::End::kDone: break;
  }
  KVASIR_RETURN_IF_ERROR(check_numbers(text));
  return std::move(parsed.value);
}

namespace {

Result<Expr> read_choices(Builder& builder, const std::vector<std::string>& choices) {
  if (choices.empty()) return invalid_argument("there is no text to choose from; give at least one choice");
  if (choices.size() > kMostChoices)
    return exhausted("there are {} choices; at most {} are allowed", choices.size(), kMostChoices);
  std::vector<Expr> all;
  for (const std::string& choice : choices) {
    KVASIR_RETURN_IF_ERROR(check_utf8(choice, 0, "a choice"));
    if (choice.empty()) return invalid_argument("a choice is empty; remove it");
    all.push_back(builder.literal(choice));
  }
  return builder.choice(all);
}

}  // namespace

Result<Expr> read_source(Builder& builder, const GrammarSource& source) {
  using Kind = GrammarSource::Kind;
  const JsonSpace space = source.compact ? JsonSpace::kNone : JsonSpace::kBounded;
  switch (source.kind) {
    case Kind::kJsonObject: return JsonText(builder, space).object();
    case Kind::kJsonSchema: {
      KVASIR_ASSIGN_OR_RETURN(const nlohmann::ordered_json schema, parse_schema(source.text));
      JsonText text(builder, space);
      return json_schema(text, schema);
    }
    case Kind::kGbnf: {
      KVASIR_ASSIGN_OR_RETURN(const Rule root, parse_gbnf(builder, source.text));
      return builder.call(root);
    }
    case Kind::kRegex: return parse_regex(builder, source.text);
    case Kind::kChoice: return read_choices(builder, source.choices);
  }
  return invalid_argument("the kind of grammar is unknown");
}

std::string key_of(const GrammarSource& source) {
  std::string key = fmt::format("{}{} {}:{}", static_cast<int>(source.kind), source.compact ? "c" : "",
                                source.text.size(), source.text);
  for (const std::string& choice : source.choices) key += fmt::format(" {}:{}", choice.size(), choice);
  return key;
}

}  // namespace grammar

namespace {

constexpr std::size_t kMostKept = 64;
constexpr std::size_t kMostKeptBytes = std::size_t{128} << 20;

}  // namespace

std::shared_ptr<const grammar::TokenTrie> GrammarCompiler::trie() const {
  const std::lock_guard lock(mutex_);
  if (trie_ == nullptr) trie_ = std::make_shared<const grammar::TokenTrie>(tokenizer_);
  return trie_;
}

// Returns the bytes of the control token of a name, or the name itself.
std::string GrammarCompiler::token_bytes(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  if (!controls_) {
    controls_.emplace();
    const Vocabulary& vocabulary = tokenizer_.vocabulary();
    for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
      const auto token = static_cast<TokenId>(i);
      if (grammar::is_control(tokenizer_, token)) controls_->emplace(vocabulary.pieces[i], token);
    }
  }
  const auto found = controls_->find(name);
  return found != controls_->end() ? grammar::control_bytes(found->second) : std::string(name);
}

std::shared_ptr<const Grammar> GrammarCompiler::find_kept(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.key == key; });
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

void GrammarCompiler::keep(std::string key, std::shared_ptr<const Grammar> grammar) const {
  const std::lock_guard lock(mutex_);
  kept_.push_front({std::move(key), std::move(grammar)});
  std::size_t bytes = 0, count = 0;
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    bytes += each->key.size() + each->grammar->bytes();
    if (++count > kMostKept || (bytes > kMostKeptBytes && count > 1)) {
      kept_.erase(each, kept_.end());
      return;
    }
  }
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSource& source,
                                                                const std::stop_token& stop) const {
  return compile(
      grammar::key_of(source), [&](grammar::Builder& builder) { return read_source(builder, source); }, stop);
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(std::string key, const Write& write,
                                                                const std::stop_token& stop) const {
  if (std::shared_ptr<const Grammar> kept = find_kept(key)) return kept;
  grammar::Builder builder(stop);
  const grammar::Rule root = builder.declare("the grammar");
  KVASIR_ASSIGN_OR_RETURN(const grammar::Expr body, write(builder));
  builder.define(root, body);
  grammar::CompileBudget budget{.stop = stop};
  const auto bytes = [this](std::string_view name) { return token_bytes(name); };
  KVASIR_ASSIGN_OR_RETURN(grammar::Machine machine, make_machine(builder, root, bytes, budget));
  if (stop.stop_requested()) return grammar::stopped_error();
  auto compiled = std::make_shared<const Grammar>(std::move(machine), trie());
  compiled->warm();
  KVASIR_RETURN_IF_ERROR(GrammarMatcher(compiled).mask().status());  // not if it is too ambiguous from the start
  keep(std::move(key), compiled);
  return std::shared_ptr<const Grammar>(std::move(compiled));
}

}  // namespace kvasir
