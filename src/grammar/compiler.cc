#include "grammar/compiler.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/machine.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"
#include "text/utf8.h"

namespace kvasir {
namespace grammar {
namespace {

constexpr std::size_t kLongestSchema = 1 << 20;
constexpr int kDeepestSchemaText = 128;
constexpr std::size_t kMostKeys = 20'000;
constexpr std::size_t kMostChoices = 10'000;

// Returns a schema, which must outlive the compilation. Its keys stay in order.
Result<nlohmann::ordered_json> parse_schema(const std::string& text) {
  if (text.size() > kLongestSchema)
    return exhausted("the schema has {} bytes; at most {} are allowed", text.size(), kLongestSchema);
  bool deep = false;
  std::size_t keys = 0;
  const auto check = [&](int depth, nlohmann::ordered_json::parse_event_t event, const nlohmann::ordered_json&) {
    deep = deep || depth > kDeepestSchemaText;
    keys += event == nlohmann::ordered_json::parse_event_t::key ? 1 : 0;
    return !deep && keys <= kMostKeys;
  };
  try {
    nlohmann::ordered_json schema = nlohmann::ordered_json::parse(text, check);
    if (deep) return exhausted("the schema nests deeper than {} levels", kDeepestSchemaText);
    if (keys > kMostKeys) return exhausted("the schema has more than {} keywords and properties", kMostKeys);
    return schema;
  } catch (const nlohmann::ordered_json::exception& error) {
    return invalid_argument("the schema is not valid JSON: {:.200}", error.what());
  }
}

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
  switch (source.kind) {
    case Kind::kJsonObject: return JsonText(builder, source.compact ? JsonSpace::kNone : JsonSpace::kBounded).object();
    case Kind::kJsonSchema: {
      KVASIR_ASSIGN_OR_RETURN(const nlohmann::ordered_json schema, parse_schema(source.text));
      JsonText text(builder, source.compact ? JsonSpace::kNone : JsonSpace::kBounded);
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

}  // namespace grammar

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
      const bool control = vocabulary.kinds[i] == TokenKind::kControl || is_marker(vocabulary, token);
      if (control && !tokenizer_.is_end(token)) controls_->emplace(vocabulary.pieces[i], token);
    }
  }
  const auto found = controls_->find(name);
  return found != controls_->end() ? grammar::control_bytes(found->second) : std::string(name);
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSource& source) const {
  grammar::Builder builder;
  const grammar::Rule root = builder.declare("the grammar");
  KVASIR_ASSIGN_OR_RETURN(const grammar::Expr body, read_source(builder, source));
  builder.define(root, body);
  return compile(builder, root);
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const grammar::Builder& builder,
                                                                grammar::Rule root) const {
  grammar::CompileBudget budget;
  const auto bytes = [this](std::string_view name) { return token_bytes(name); };
  KVASIR_ASSIGN_OR_RETURN(grammar::Machine machine, make_machine(builder, root, bytes, budget));
  auto grammar = std::make_shared<const Grammar>(std::move(machine), trie());
  grammar->warm();
  KVASIR_RETURN_IF_ERROR(GrammarMatcher(grammar).mask().status());  // not if it is too ambiguous from the start
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

}  // namespace kvasir
