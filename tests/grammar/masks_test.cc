// Masks against a mask of each token followed byte by byte, and what is kept of them.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/grammar_support.h"
#include "grammar/interior.h"
#include "grammar/matcher.h"
#include "grammar/token_mask.h"
#include "grammar/token_trie.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using namespace grammar;
using test::gbnf_source;
using test::schema_source;

// Bytes, control tokens, and tokens of several bytes that grammars of the tests can meet, some of them twice.
std::unique_ptr<Tokenizer> tokenizer(std::uint32_t seed) {
  std::mt19937 random(seed);
  Vocabulary vocabulary = test::byte_vocabulary();
  for (const char* name : {"<|tool|>", "<think>"}) test::add_piece(&vocabulary, name, 0, TokenKind::kControl);
  const char* parts[] = {"a",   "b",  "ab", "ba", "c",    "\"",   "\",", "\": ", "{\"",          "}",
                         "]",   "[",  ",",  "1",  "23",   "true", "é",   "null", "\xE2\x96\x81", "\\",
                         "\\u", "00", "x",  "\n", "日本", "-",    "0.",  "false"};
  for (int i = 0; i < 1500; ++i) {
    std::string piece;
    for (std::size_t n = 1 + random() % 5; n > 0; --n) piece += parts[random() % std::size(parts)];
    test::add_piece(&vocabulary, piece);
  }
  return test::tokenizer_of(std::move(vocabulary));
}

// The mask of a place, token by token.
TokenBits brute_mask(const Machine& machine, Configurations& configurations, Configurations::Id id,
                     const TokenTrie& trie) {
  TokenBits mask(trie.words());
  const auto set = [&](TokenId token) {
    mask[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
  };
  for (TokenId token = 0; token < static_cast<TokenId>(trie.vocabulary()); ++token) {
    const std::string_view bytes = trie.bytes_of(token);
    if (bytes.empty()) continue;
    Configurations::Id at = id;
    for (const char c : bytes)
      if (at != Configurations::kNone) at = configurations.step(at, machine.class_of[static_cast<std::uint8_t>(c)]);
    if (at != Configurations::kNone) set(token);
  }
  if (configurations[id].complete)
    for (const TokenId end : trie.ends()) set(end);
  return mask;
}

std::vector<TokenId> tokens_of(const TokenBits& mask, const TokenTrie& trie) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < static_cast<TokenId>(trie.vocabulary()); ++token)
    if ((mask[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0) tokens.push_back(token);
  return tokens;
}

std::string random_gbnf(std::mt19937& random) {
  const auto atom = [&]() -> std::string {
    const char* atoms[] = {"\"a\"", "\"b\"", "\"ab\"", "[a-c]", "[^\"\\\\\\n]", "\"\\\"\"",
                           ".",     "[à-ÿ]", "\"{\"",  "\"}\"", "[0-9]",        "\"\""};
    return random() % 3 == 0 ? "r" + std::to_string(random() % 4) : atoms[random() % std::size(atoms)];
  };
  std::string grammar;
  for (const char* name : {"root", "r0", "r1", "r2", "r3"}) {
    grammar += std::string(name) + " ::=";
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      grammar += " \"" + std::string(1, "xyz1,"[random() % 5]) + "\"";  // no left recursion
      for (std::size_t parts = random() % 4; parts > 0; --parts) {
        const char* counts[] = {"", "", "*", "+", "?", "{0,3}"};
        grammar += " " + atom() + counts[random() % std::size(counts)];
      }
      if (n > 1) grammar += " |";
    }
    grammar += "\n";
  }
  return grammar;
}

const char* const kSchemas[] = {
    R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}},"required":["a"]})",
    R"({"type":"array","items":{"type":"string","maxLength":6}})",
    R"({"type":"string","maxLength":40})",
    R"({"type":"string","pattern":"^[a-z ]{2,12}$"})",
    R"({})",
    R"({"type":"object","additionalProperties":{"type":["string","null"]},"properties":{"ab":{"type":"boolean"}}})",
    R"({"anyOf":[{"type":"string"},{"const":"ab"},{"type":"array","items":{"enum":["a","ab",1]}}]})",
};

void compare_masks(const GrammarSource& source, const TokenTrie& trie, std::mt19937& random, int walks, int* compared) {
  const auto machine = test::machine_of(source);
  if (!machine.ok()) return;
  Interiors interiors(*machine, trie);
  Configurations configurations(*machine), other(*machine);
  configurations.grant(1'000'000'000);
  other.grant(1'000'000'000);
  for (int walk = 0; walk < walks; ++walk) {
    Configurations::Id at = configurations.start(), same = other.start();
    for (int step = 0; step < 12; ++step) {
      const TokenBits mask = make_mask(configurations, at, trie, interiors);
      if (configurations.exhausted() || other.exhausted()) return;
      ASSERT_EQ(tokens_of(mask, trie), tokens_of(brute_mask(*machine, other, same, trie), trie))
          << source.text << "\nstep " << step;
      ++*compared;
      std::vector<TokenId> next;
      for (const TokenId token : tokens_of(mask, trie))
        if (!trie.bytes_of(token).empty()) next.push_back(token);
      if (next.empty()) break;
      for (const char c : trie.bytes_of(next[random() % next.size()])) {
        at = configurations.step(at, machine->class_of[static_cast<std::uint8_t>(c)]);
        same = other.step(same, machine->class_of[static_cast<std::uint8_t>(c)]);
      }
    }
  }
}

TEST(GrammarMasks, AreThoseOfEachTokenAlone) {
  std::mt19937 random(21);
  const auto words = tokenizer(1);
  const TokenTrie trie(*words);
  int compared = 0;
  for (int i = 0; i < 120; ++i) compare_masks(gbnf_source(random_gbnf(random)), trie, random, 3, &compared);
  for (const char* schema : kSchemas)
    for (const bool compact : {false, true}) compare_masks(schema_source(schema, compact), trie, random, 8, &compared);
  EXPECT_GT(compared, 1000);
}

TEST(GrammarMasks, InteriorsDerivedFromOthersAreThoseMadeFromNothing) {
  const auto words = tokenizer(2);
  const TokenTrie trie(*words);
  std::mt19937 random(22);
  for (const char* schema : kSchemas) {
    const auto machine = test::machine_of(schema_source(schema));
    ASSERT_TRUE(machine.ok()) << machine.status().message();
    std::vector<std::uint32_t> states;
    for (std::uint32_t state = 0; state < machine->states.size(); ++state)
      if (machine->states[state].live_bytes >= kInteriorBytes) states.push_back(state);
    ASSERT_FALSE(states.empty());
    for (int round = 0; round < 2; ++round) {  // in two orders: what is derived from what depends on it
      std::shuffle(states.begin(), states.end(), random);
      Interiors interiors(*machine, trie);
      if (round == 1) interiors.warm(std::chrono::steady_clock::now() + std::chrono::seconds(60));
      for (const std::uint32_t state : states) {
        const Interior& derived = interiors.of(state);
        const Interior made = make_interior(*machine, trie, state);
        ASSERT_EQ(derived.tokens, made.tokens) << schema << " state " << state;
        ASSERT_EQ(derived.exits.size(), made.exits.size()) << schema << " state " << state;
        // An exit of an equal state may be named by another one.
        for (std::size_t i = 0; i < made.exits.size(); ++i) {
          std::vector<std::pair<std::uint8_t, std::uint32_t>> want, got;
          for (const Interior::Exit& exit : made.exits) want.emplace_back(exit.byte, exit.node);
          for (const Interior::Exit& exit : derived.exits) got.emplace_back(exit.byte, exit.node);
          std::sort(want.begin(), want.end());
          std::sort(got.begin(), got.end());
          ASSERT_EQ(want, got);
          break;
        }
      }
    }
  }
}

class GrammarMatching : public testing::Test {
 protected:
  std::shared_ptr<const Grammar> compile(const GrammarSource& source) {
    auto grammar = compiler_.compile(source);
    EXPECT_TRUE(grammar.ok()) << grammar.status().message();
    return grammar.ok() ? *grammar : nullptr;
  }
  static std::vector<TokenId> allowed(GrammarMatcher& matcher) {
    const auto mask = matcher.mask();
    EXPECT_TRUE(mask.ok()) << mask.status().message();
    return mask.ok() ? tokens_of(**mask, matcher.grammar().trie()) : std::vector<TokenId>();
  }
  bool accept(GrammarMatcher& matcher, std::string_view text) {
    for (const char c : text)
      if (!matcher.accept(test::byte_token(c)).ok()) return false;
    return true;
  }
  TokenId id_of(std::string_view piece) const {
    const auto& pieces = words_->vocabulary().pieces;
    return static_cast<TokenId>(std::find(pieces.begin(), pieces.end(), piece) - pieces.begin());
  }

  const std::unique_ptr<Tokenizer> words_ = tokenizer(3);
  const GrammarCompiler compiler_{*words_};
};

TEST_F(GrammarMatching, ControlTokensAreMatchedAsThemselvesAndNotAsText) {
  const auto grammar = compile(gbnf_source("root ::= <|tool|> \"a\" <think>? \"b\"*"));
  GrammarMatcher matcher(grammar);
  EXPECT_EQ(allowed(matcher), std::vector<TokenId>{id_of("<|tool|>")});
  EXPECT_EQ(matcher.forced(100), control_bytes(id_of("<|tool|>")) + "a");
  EXPECT_EQ(matcher.forced(2), "");  // not a part of a control token
  EXPECT_FALSE(matcher.accept(test::byte_token('<')).ok());
  ASSERT_TRUE(matcher.accept(id_of("<|tool|>")).ok());
  EXPECT_FALSE(matcher.accept(id_of("<|tool|>")).ok());
  ASSERT_TRUE(accept(matcher, "a"));
  EXPECT_TRUE(matcher.complete());
  const std::vector<TokenId> then = allowed(matcher);
  EXPECT_TRUE(std::find(then.begin(), then.end(), id_of("<think>")) != then.end());
  EXPECT_TRUE(std::find(then.begin(), then.end(), *words_->vocabulary().eos) != then.end());
  ASSERT_TRUE(matcher.accept(id_of("<think>")).ok());
  EXPECT_FALSE(matcher.accept(id_of("<think>")).ok());
  // Text of any kind never allows a control token.
  GrammarMatcher any(compile(gbnf_source("root ::= .*")));
  for (const TokenId token : allowed(any))
    EXPECT_TRUE(token == *words_->vocabulary().eos ||
                words_->vocabulary().kinds[std::size_t(token)] != TokenKind::kControl)
        << token;
}

TEST_F(GrammarMatching, RefusedTokensLeaveThePlaceUnchanged) {
  GrammarMatcher matcher(
      compile(schema_source(R"({"type":"object","properties":{"ab":{"type":"integer"}},"required":["ab"]})")));
  EXPECT_EQ(matcher.forced(100), "{\"ab\":");
  EXPECT_EQ(matcher.forced(3), "{\"a");
  ASSERT_TRUE(accept(matcher, "{\"a"));
  const std::vector<TokenId> before = allowed(matcher);
  for (const TokenId token : {test::byte_token('x'), *words_->vocabulary().eos, *words_->vocabulary().bos, TokenId{0}})
    EXPECT_EQ(matcher.accept(token).code(), StatusCode::kInvalidArgument) << token;
  EXPECT_EQ(allowed(matcher), before);
  EXPECT_FALSE(matcher.complete());
  ASSERT_TRUE(accept(matcher, "b\":12"));
  EXPECT_FALSE(matcher.finished());
  ASSERT_TRUE(accept(matcher, "}"));
  EXPECT_TRUE(matcher.complete());
  EXPECT_TRUE(matcher.finished());
  EXPECT_EQ(allowed(matcher), std::vector<TokenId>{*words_->vocabulary().eos});
}

TEST_F(GrammarMatching, TextsKeepTheirPlaceWhenWhatIsKnownBeginsAnew) {
  const auto grammar = compile(schema_source("{}"));
  GrammarMatcher early(grammar);
  ASSERT_TRUE(accept(early, std::string(50, '[') + "\"a"));
  const std::vector<TokenId> before = allowed(early);
  GrammarMatcher copy = early;
  GrammarMatcher deep(grammar);  // each level is another place: some 32 MiB of them are kept
  for (int i = 0; i < 150'000; ++i) ASSERT_TRUE(deep.accept(test::byte_token('[')).ok()) << i;
  EXPECT_EQ(allowed(early), before);
  for (GrammarMatcher* each : {&early, &copy}) {
    ASSERT_TRUE(accept(*each, "\"" + std::string(49, ']')));
    EXPECT_FALSE(each->complete());
    ASSERT_TRUE(accept(*each, "]"));
    EXPECT_TRUE(each->complete() && each->finished());
  }
  ASSERT_TRUE(accept(deep, "1"));
  for (int i = 0; i < 150'000; ++i) ASSERT_TRUE(deep.accept(test::byte_token(']')).ok()) << i;
  EXPECT_TRUE(deep.finished());
}

TEST_F(GrammarMatching, AmbiguityEndsWithAnErrorAndNotWithAHang) {
  // Each text of n letters has a number of readings that grows with n in several ways at once.
  const auto grammar =
      compile(gbnf_source("root ::= s\ns ::= \"a\" | \"a\" s | \"a\" s s | \"a\" s \"b\" s | \"a\" s s \"c\""));
  const auto begin = std::chrono::steady_clock::now();
  GrammarMatcher matcher(grammar);
  Status status;
  for (int i = 0; i < 3000 && status.ok(); ++i) {
    status = matcher.mask().status();
    if (status.ok()) status = matcher.accept(test::byte_token('a'));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  EXPECT_NE(status.message().find("ambiguous"), std::string::npos);
  // Others of the grammar go on.
  GrammarMatcher other(grammar);
  EXPECT_TRUE(accept(other, "aab"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(GrammarMatching, AmbiguityFromTheStartIsRefusedByTheCompiler) {
  std::string grammar = "root ::= r0";
  for (int i = 1; i < 2000; ++i) grammar += " | r" + std::to_string(i);
  for (int i = 0; i < 2000; ++i) grammar += "\nr" + std::to_string(i) + " ::= \"a" + std::to_string(i) + "\" | \"b\"";
  EXPECT_EQ(compiler_.compile(gbnf_source(grammar)).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(GrammarMatching, HostileSourcesAreRefusedInTime) {
  const auto many = [](int count, auto&& one) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (i > 0 ? "," : "") + one(std::to_string(i));
    return text;
  };
  const std::vector<GrammarSource> sources = {
      schema_source(R"({"oneOf":[)" + many(5000, [](const auto& i) { return R"({"const":)" + i + "}"; }) + "]}"),
      schema_source(R"({"type":"object","properties":{)" +
                    many(60'000, [](const auto& i) { return "\"p" + i + "\":{}"; }) + "}}"),
      schema_source(R"({"type":"object","properties":{)" +
                    many(15'000, [](const auto& i) { return "\"p" + i + "\":{}"; }) + "}}"),
      schema_source(R"({"type":"object","properties":{)" +
                    many(900, [](const auto& i) { return "\"p" + i + "\":{}"; }) + R"(},"patternProperties":{)" +
                    many(900, [](const auto& i) { return "\"^a.*x{1,50}" + i + "$\":{}"; }) + "}}"),
      schema_source(R"({"type":"object","properties":{)" +
                    many(3000, [](const auto& i) { return "\"p" + i + "\":true"; }) + R"(},"anyOf":[)" +
                    many(500, [](const auto& i) { return R"({"required":["p)" + i + "\"]}"; }) + "]}"),
      schema_source(R"({"type":"string","pattern":"^(a|b)*a(a|b){25}$"})"),
      schema_source(
          R"({"type":"array","maxItems":9999,"items":{"type":"array","maxItems":9999,"items":{"type":"string","maxLength":9999}}})"),
      schema_source(std::string(200'000, '[')),
      schema_source(R"({"allOf":)" + std::string(100, '[') + std::string(100, ']') + "}"),
      gbnf_source("root ::= (((\"a\"{10000}){10000}){10000})"),
      test::regex_source("(a?){10000}"),
      test::regex_source("((a|b|c?){100}){100}"),
  };
  for (const GrammarSource& source : sources) {
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = compiler_.compile(source);
    EXPECT_FALSE(grammar.ok()) << source.text.substr(0, 100);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << source.text.substr(0, 100);
  }
  // Long lists of constants are fine.
  EXPECT_TRUE(
      compiler_
          .compile(schema_source(R"({"enum":[)" + many(10'000, [](const auto& i) { return "\"v" + i + "\""; }) + "]}"))
          .ok());
}

TEST_F(GrammarMatching, ChoicesAreTheirTexts) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kChoice;
  source.choices = {"yes", "yes please", "no"};
  GrammarMatcher matcher(compile(source));
  ASSERT_TRUE(accept(matcher, "yes"));
  EXPECT_TRUE(matcher.complete() && !matcher.finished());
  ASSERT_TRUE(accept(matcher, " please"));
  EXPECT_TRUE(matcher.finished());
  source.choices = {};
  EXPECT_EQ(compiler_.compile(source).status().code(), StatusCode::kInvalidArgument);
  source.choices = {"a", ""};
  EXPECT_EQ(compiler_.compile(source).status().code(), StatusCode::kInvalidArgument);
  source.choices.assign(10'001, "x");
  EXPECT_EQ(compiler_.compile(source).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvasir
