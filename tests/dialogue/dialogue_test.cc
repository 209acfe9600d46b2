// How templates write answers, and answers read in pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <random>

#include "dialogue/conversation.h"
#include "dialogue/literal.h"
#include "dialogue/round_trip.h"
#include "dialogue/thought_marks.h"
#include "generation/thought_meter.h"
#include "support/shared_data.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using Shape = CallFormat::Shape;
using test::answer_of;
using test::pieces_of;
using test::shown;

std::string source_of(const std::string& name) {
  std::ifstream file(test::source_dir() + "/tests/dialogue/templates/" + name + ".jinja", std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Message calling(std::vector<ToolCall> calls, std::string content = "", std::string thoughts = "") {
  Message message = {"assistant", std::move(content)};
  message.reasoning = std::move(thoughts);
  message.tool_calls = std::move(calls);
  return message;
}

const Message kQuestion = {"user", "What is the weather?"};
const ToolCall kOne = {"abcdef123", "get_weather", R"({"city": "Zürich \"x\" <b>", "days": 3, "exact": true})"};
const ToolCall kTwo = {"abcdef124", "get_weather_map", R"({"code": "a\n  b\n", "points": [1.5, -2]})"};
const ToolCall kBare = {"abcdef125", "get_weather_map", "{}"};

struct Family {
  const char* name;
  Shape shape;
  bool single = false;
  bool thinks = false;
};
constexpr Family kFamilies[] = {{"hermes", Shape::kObject, false, true},
                                {"qwen3-coder", Shape::kTagged},
                                {"llama-3", Shape::kObject, true},
                                {"pythonic", Shape::kPython},
                                {"lfm2", Shape::kPython},
                                {"mistral", Shape::kObject},
                                {"mistral-args", Shape::kNamed, false, true},
                                {"gpt-oss", Shape::kNamed, true},
                                {"gemma-4", Shape::kGemma, false, true},
                                {"granite", Shape::kObject},
                                {"phi-4", Shape::kObject},
                                {"glm", Shape::kTagged, false, true},
                                {"deepseek", Shape::kNamed},
                                {"kimi-k2", Shape::kNamed, false, true},
                                {"minimax", Shape::kTagged}};

// Reads a text cut at every byte, and byte by byte; returns what every reading gives.
Answer read(const AnswerForm& form, const std::string& text) {
  Answer whole = answer_of(pieces_of(form, text, text.size() + 1));
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(shown(answer_of(pieces_of(form, text, 0, cut))), shown(whole)) << "cut at " << cut << ": " << text;
  EXPECT_EQ(shown(answer_of(pieces_of(form, text, 1))), shown(whole)) << text;
  return whole;
}

TEST(Dialogue, FormatsOfFamiliesAreFound) {
  for (const Family& family : kFamilies) {
    const test::Dialogue dialogue(source_of(family.name));
    EXPECT_EQ(dialogue.format.calls.shape, family.shape) << family.name;
    EXPECT_EQ(dialogue.format.calls.single, family.single) << family.name;
    EXPECT_EQ(!dialogue.format.thoughts.open.empty(), family.thinks) << family.name;
    EXPECT_TRUE(dialogue.format.writes_tools) << family.name;
    EXPECT_EQ(dialogue.format.short_ids, std::string_view(family.name) == "mistral") << family.name;
  }
}

// Rendered, read in pieces, rendered again: equal.
TEST(Dialogue, CallsOfEveryFamilySurviveARoundTrip) {
  for (const Family& family : kFamilies) {
    const test::Dialogue dialogue(source_of(family.name));
    std::vector<Message> answers = {calling({kOne}), calling({kBare}), calling({kTwo})};
    if (!family.single) {
      answers.push_back(calling({kOne, kTwo}));
      answers.push_back(calling({kOne, kBare, kTwo}));
    }
    const bool called_alone = std::string_view(family.name) == "llama-3" ||
                              std::string_view(family.name) == "mistral" ||
                              std::string_view(family.name) == "pythonic" || std::string_view(family.name) == "lfm2" ||
                              dialogue.format.channels;
    if (!called_alone) answers.push_back(calling({kOne}, "Let me look."));
    if (family.thinks) answers.push_back(calling({kOne}, "", "I think so."));
    for (const Message& answer : answers) {
      const Message given = written_out({answer}, "", dialogue.format, false).front();
      const auto text = dialogue.generated(kQuestion, given);
      ASSERT_TRUE(text) << family.name;
      const Answer got = read(*dialogue.form(), *text);
      ASSERT_EQ(got.calls.size(), answer.tool_calls.size()) << family.name << ": " << *text;
      EXPECT_EQ(got.content, answer.content) << family.name << ": " << *text;
      EXPECT_EQ(got.reasoning, answer.reasoning) << family.name << ": " << *text;
      Message again = calling(got.calls, got.content, got.reasoning);
      for (std::size_t i = 0; i < got.calls.size(); ++i) {
        EXPECT_EQ(got.calls[i].name, answer.tool_calls[i].name);
        EXPECT_EQ(nlohmann::json::parse(got.calls[i].arguments), nlohmann::json::parse(answer.tool_calls[i].arguments))
            << family.name << ": " << *text;
        again.tool_calls[i].id = answer.tool_calls[i].id;
      }
      EXPECT_EQ(dialogue.generated(kQuestion, written_out({again}, "", dialogue.format, false).front()), text)
          << family.name;
    }
  }
}

// What written_calls makes, from which prompts of templates without calls are written, is what the parser reads.
TEST(Dialogue, WrittenCallsAreReadAgain) {
  for (const Family& family : kFamilies) {
    const test::Dialogue dialogue(source_of(family.name));
    if (dialogue.format.channels) continue;
    const std::vector<ToolCall> calls = family.single ? std::vector{kOne} : std::vector{kOne, kBare, kTwo};
    const std::string text = written_calls(dialogue.format.calls, calls);
    const Answer got = read(*dialogue.form(), text);
    ASSERT_EQ(got.calls.size(), calls.size()) << family.name << ": " << text;
    for (std::size_t i = 0; i < calls.size(); ++i)
      EXPECT_EQ(nlohmann::json::parse(got.calls[i].arguments), nlohmann::json::parse(calls[i].arguments)) << text;
  }
}

TEST(Dialogue, AMalformedCallIsContentWhole) {
  const test::Dialogue dialogue(source_of("hermes"));
  for (const std::string text :
       {"<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>", "Say <tool_call> or </tool_call>.",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": }}\n</tool_call>", "<tool_call>",
        "a <tool_c", "<tool_call>{\"name\": 5}</tool_call>", "{\"name\": \"get_weather\"}", "<tool_call>{}</tool_call>",
        "<tool_call>[[[[</tool_call>"}) {
    const Answer got = read(*dialogue.form(), text);
    EXPECT_TRUE(got.calls.empty()) << text;
    EXPECT_EQ(got.content, text);
  }
}

TEST(Dialogue, ACallThatTheEndCutsIsACall) {
  const test::Dialogue dialogue(source_of("hermes"));
  const std::string_view text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ro";
  const Answer got = read(*dialogue.form(), std::string(text));
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.calls[0].arguments, R"({"city": "Ro)");
  EXPECT_EQ(got.content, "");
}

TEST(Dialogue, ACallAfterAMalformedOneIsRead) {
  const test::Dialogue dialogue(source_of("hermes"));
  const std::string good = written_calls(dialogue.format.calls, {&kOne, 1});
  const Answer got = read(*dialogue.form(), "Hm <tool_call> no.\n" + good);
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.content, "Hm <tool_call> no.");
}

TEST(Dialogue, ArgumentsComeInPieces) {
  const test::Dialogue dialogue(source_of("hermes"));
  const std::string text = written_calls(dialogue.format.calls, {&kOne, 1});
  const auto parser = dialogue.form()->parser(1);
  int begun = 0, parts = 0, ended = 0;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::vector<AnswerPiece> pieces;
    parser->push(std::string_view(text).substr(i, 4), pieces);
    for (const AnswerPiece& piece : pieces) {
      begun += piece.kind == AnswerPiece::Kind::kCallBegins;
      ended += piece.kind == AnswerPiece::Kind::kCallEnds;
      if (piece.kind != AnswerPiece::Kind::kArguments) continue;
      EXPECT_EQ(begun, 1);
      EXPECT_EQ(ended, 0);
      ++parts;
    }
  }
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(ended, 1);
  EXPECT_GT(parts, 5);
}

// A value of text in a format without quotation marks comes in pieces too, and stays text.
TEST(Dialogue, TextWithoutQuotationMarksStaysText) {
  const test::Dialogue dialogue(source_of("qwen3-coder"));
  const std::string text =
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n42\n</parameter>\n"
      "<parameter=other>\nfalse\n</parameter>\n</function>\n</tool_call>";
  const Answer got = read(*dialogue.form(), text);
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.calls[0].arguments, R"({"city": "42", "days": 42, "other": false})");
}

TEST(Dialogue, ThoughtsAreApart) {
  const test::Dialogue dialogue(source_of("hermes"));
  const Answer thought = read(*dialogue.form(), "<think>\nWell, <b>.\n\n</think>\n\nHello </think> you \n");
  EXPECT_EQ(thought.reasoning, "Well, <b>.");
  EXPECT_EQ(thought.content, "Hello </think> you \n");
  const Answer open = read(*dialogue.form(), "<think>\nWell");
  EXPECT_EQ(open.reasoning, "Well");
  EXPECT_EQ(open.content, "");
  const Answer plain = read(*dialogue.form(), "I said <think> aloud");
  EXPECT_EQ(plain.content, "I said <think> aloud");
  const AnswerRules rules = {dialogue.format, {}, true};
  const Answer begun = read(*make_answer_form(std::make_shared<const AnswerRules>(rules)), "Well.\n</think>\nHello");
  EXPECT_EQ(begun.reasoning, "Well.");
  EXPECT_EQ(begun.content, "Hello");
}

// Where every byte is a token, as many tokens count as the parser's thoughts have bytes.
TEST(Dialogue, TokensOfThoughtsAreThoseOfTheParser) {
  const auto tokenizer = test::tokenizer_of(test::byte_vocabulary());
  const std::string_view parts[] = {"<think>", "</think>", "<th", "</", " ", "\n", "a", "I think."};
  std::mt19937 random(3);
  std::size_t thought = 0;
  for (int round = 0; round < 3000; ++round) {
    const bool channels = round % 3 == 2;
    static const test::Dialogue kHermes(source_of("hermes")), kChannels(source_of("gpt-oss"));
    const auto rules = std::make_shared<const AnswerRules>(
        AnswerRules{channels ? kChannels.format : kHermes.format, {}, round % 3 == 1});
    const auto marks = make_thought_marks(*rules, *tokenizer);
    ASSERT_TRUE(marks.ok() && *marks != nullptr);
    std::string text = round % 3 == 0 ? "<think>" : "";
    for (unsigned left = 1 + random() % 8; left > 0; --left) {
      if (channels) text += random() % 2 == 0 ? "<|channel|>analysis<|message|>" : "<|channel|>final<|message|>";
      text += parts[channels ? 4 + random() % 4 : 1 + random() % 7];
      if (channels) text += "<|end|><|start|>assistant";
    }
    ThoughtMeter meter(*marks, -1);
    for (const char c : text) meter.read({&c, 1}, false);
    const Answer answer = answer_of(pieces_of(*make_answer_form(rules), text, 1));
    // In channels the parser keeps white space.
    const auto spaces =
        channels ? std::ranges::count_if(answer.reasoning, [](char c) { return c == ' ' || c == '\n'; }) : 0;
    const auto phrases = channels ? std::ranges::count(answer.reasoning, 'I') : 0;  // each with a space inside
    EXPECT_EQ(meter.tokens(), std::ssize(answer.reasoning) - spaces + phrases) << text;
    thought += answer.reasoning.size();
  }
  EXPECT_GT(thought, 3000u);
}

// What ends thoughts is what the template writes between them and the content.
TEST(Dialogue, ThoughtsCloseAsTheTemplateClosesThem) {
  const std::pair<const char*, const char*> closings[] = {
      {"hermes", "\n</think>\n\n"}, {"gpt-oss", "<|end|><|start|>assistant<|channel|>final<|message|>"}};
  const auto tokenizer = test::tokenizer_of(test::byte_vocabulary());
  for (const auto& [name, closing] : closings) {
    const test::Dialogue dialogue(source_of(name));
    const auto marks = make_thought_marks({dialogue.format, {}, false}, *tokenizer);
    ASSERT_TRUE(marks.ok() && *marks != nullptr) << name;
    EXPECT_EQ(tokenizer->decode((*marks)->closing, true), closing) << name;
    EXPECT_TRUE((*marks)->closing_again.empty()) << name;
  }
  // With tools a call may follow, but not thoughts without end.
  const auto calling =
      make_thought_marks({test::Dialogue(source_of("gpt-oss")).format, *read_tools(test::kTools), false}, *tokenizer);
  ASSERT_TRUE(calling.ok() && *calling != nullptr);
  EXPECT_EQ(tokenizer->decode((*calling)->closing, true), "<|end|><|start|>assistant");
  EXPECT_EQ(tokenizer->decode((*calling)->closing_again, true), closings[1].second);
  for (const Family& family : kFamilies) {
    const test::Dialogue dialogue(source_of(family.name));
    if (dialogue.format.thoughts.open.empty()) continue;
    Message answer = {"assistant", "So it is."};
    answer.reasoning = "I think so.";
    const auto text = dialogue.generated(kQuestion, answer);
    ASSERT_TRUE(text) << family.name;
    EXPECT_NE(text->find("I think so." + dialogue.format.thoughts.closing + "So it is."), std::string::npos)
        << family.name << ": " << *text;
  }
  const test::Dialogue plain(source_of("llama-3"));
  const auto none = make_thought_marks({plain.format, {}, false}, *tokenizer);
  EXPECT_TRUE(none.ok() && *none == nullptr);
}

TEST(Dialogue, ChannelsAreApart) {
  const test::Dialogue dialogue(source_of("gpt-oss"));
  const Answer said =
      read(*dialogue.form(),
           "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>final<|message|>Hello < you");
  EXPECT_EQ(said.reasoning, "Well.");
  EXPECT_EQ(said.content, "Hello < you");
  const Answer called = read(*dialogue.form(),
                             "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>commentary "
                             "to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Rome\"}");
  EXPECT_EQ(called.reasoning, "Well.");
  ASSERT_EQ(called.calls.size(), 1u);
  EXPECT_EQ(called.calls[0].arguments, "{\"city\":\"Rome\"}");
  EXPECT_EQ(read(*dialogue.form(), "No channel at all").content, "No channel at all");
}

TEST(Dialogue, OneCallAtMostWhereSeveralAreNotWanted) {
  const test::Dialogue dialogue(source_of("hermes"));
  const ToolCall both[] = {kOne, kTwo};
  AnswerRules rules = {dialogue.format, *read_tools(test::kTools), false};
  rules.most_calls = 1;
  const Answer got = read(*make_answer_form(std::make_shared<const AnswerRules>(rules)),
                          written_calls(dialogue.format.calls, both) + " more");
  EXPECT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.content, "");
}

TEST(Dialogue, ANamedToolIsCalledOnce) {
  const test::Dialogue dialogue(source_of("hermes"));
  FormatCache cache;
  RequestOptions options;
  options.messages = {kQuestion};
  options.tools = test::kTools;
  const auto most_calls = [&] {
    const auto conversation = write_conversation(*dialogue.chat, dialogue.vocabulary, cache, options);
    return conversation.ok() && conversation->rules != nullptr ? conversation->rules->most_calls : 0;
  };
  options.tool_choice = ToolChoice::kRequired;
  EXPECT_EQ(most_calls(), AnswerRules::kMostCalls);
  options.tool_choice = ToolChoice::kNamed;
  options.tool_name = kOne.name;
  EXPECT_EQ(most_calls(), 1);
}

// Writes conversations with a template that is given by its source.
struct TemplateWriter {
  explicit TemplateWriter(const std::string& source) : made(make_chat_template(vocabulary, {.source = source})) {}

  Result<Conversation> write(const RequestOptions& options) {
    return write_conversation(**made, vocabulary, cache, options);
  }

  Vocabulary vocabulary = test::dialogue_vocabulary();
  Result<std::unique_ptr<ChatTemplate>> made;
  FormatCache cache;
};

TEST(Dialogue, ToolsReachTemplatesThatKnowNone) {
  const std::string sources[] = {
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
      "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"};
  for (const std::string& source : sources) {
    TemplateWriter writer(source);
    ASSERT_TRUE(writer.made.ok());
    RequestOptions options;
    Message result = {"tool", "sunny"};
    result.tool_call_id = kOne.id;
    options.messages = {kQuestion, calling({kOne}), result};
    options.tools = test::kTools;
    const auto conversation = writer.write(options);
    ASSERT_TRUE(conversation.ok()) << conversation.status().message();
    const std::string text = conversation->prompt.text();
    EXPECT_NE(text.find("\"get_weather_map\""), std::string::npos);
    EXPECT_NE(text.find("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\""), std::string::npos);
    EXPECT_NE(text.find("<tool_response>\nsunny\n</tool_response>"), std::string::npos);
    ASSERT_NE(conversation->rules, nullptr);
    options.tools.clear();
    options.messages = {kQuestion};
    EXPECT_EQ(writer.write(options)->rules, nullptr) << "a plain answer";
  }
}

// Calls without a mark cannot be told from text: a request with tools is refused, one without is answered.
TEST(Dialogue, ToolsOfATemplateWithUnknownCallsAreRefused) {
  const std::string sources[] = {
      source_of("functionary"),
      // Arguments as lines of their own, with nothing around a value.
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}<call>"
      "{{ call.function.name }}{% for key, value in call.function.arguments | items %} {{ key }} {{ value }}"
      "{% endfor %}</call>{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"};
  for (const std::string& source : sources) {
    TemplateWriter writer(source);
    ASSERT_TRUE(writer.made.ok());
    RequestOptions options;
    options.messages = {kQuestion};
    options.tools = test::kTools;
    const auto refused = writer.write(options);
    ASSERT_FALSE(refused.ok()) << source;
    EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(refused.status().settings().front(), "tools");
    options.tool_choice = ToolChoice::kNone;
    EXPECT_TRUE(writer.write(options).ok());
    options.tools.clear();
    options.messages = {kQuestion, calling({kOne})};
    const auto history = writer.write(options);
    ASSERT_TRUE(history.ok()) << history.status().message();
    EXPECT_NE(history->prompt.text().find("get_weather"), std::string::npos) << history->prompt.text();
  }
}

// Kimi's ids name the tools: those of other servers are replaced, in calls and results, and stay as they are later on.
TEST(Dialogue, IdsNameTheirToolsWhereTheTemplateWritesOnlyThese) {
  TemplateWriter writer(source_of("kimi-k2"));
  ASSERT_TRUE(writer.made.ok());
  RequestOptions options;
  Message result = {"tool", "sunny"};
  result.tool_call_id = kOne.id;
  ToolCall own = kTwo;
  own.id = "functions.get_weather_map:7";
  options.messages = {kQuestion, calling({kOne}), result, calling({own})};
  options.tools = test::kTools;
  const auto conversation = writer.write(options);
  ASSERT_TRUE(conversation.ok()) << conversation.status().message();
  const std::string text = conversation->prompt.text();
  EXPECT_NE(text.find("<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"), std::string::npos);
  EXPECT_NE(text.find("## Return of functions.get_weather:0\n"), std::string::npos);
  EXPECT_NE(text.find("<|tool_call_begin|>functions.get_weather_map:7<"), std::string::npos);
  EXPECT_EQ(text.find(kOne.id), std::string::npos);

  const test::Dialogue dialogue(source_of("kimi-k2"));
  const std::string call = "<|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{}<|tool_call_end|>";
  const Answer got =
      read(*dialogue.form(), "<|tool_calls_section_begin|>" + call + call + "<|tool_calls_section_end|>");
  ASSERT_EQ(got.calls.size(), 2u);
  EXPECT_EQ(got.calls[0].id, "functions.get_weather:3");
  EXPECT_NE(got.calls[1].id, got.calls[0].id);
  const Answer unknown = read(*dialogue.form(),
                              "<|tool_calls_section_begin|><|tool_call_begin|>functions.none:0"
                              "<|tool_call_argument_begin|>{}<|tool_call_end|>");
  EXPECT_TRUE(unknown.calls.empty());
}

// The first template of Kimi K2 writes tools, but no calls: what it knows is told by the vocabulary.
TEST(Dialogue, KimisCallsAreToldByItsTokens) {
  Vocabulary vocabulary = test::dialogue_vocabulary();
  for (const char* piece : {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                            "<|tool_call_argument_begin|>", "<|tool_call_end|>"}) {
    vocabulary.pieces.emplace_back(piece);
    vocabulary.scores.push_back(0);
    vocabulary.kinds.push_back(TokenKind::kControl);
  }
  const auto chat = make_chat_template(
      vocabulary,
      {.source = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_{{ m.role }}|>"
                 "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_assistant|>{% endif %}"});
  ASSERT_TRUE(chat.ok());
  const AnswerFormat format = find_format(**chat, vocabulary);
  const AnswerFormat rendered = test::Dialogue(source_of("kimi-k2")).format;
  EXPECT_FALSE(format.writes_calls);
  EXPECT_TRUE(format.calls.name_in_id && rendered.calls.name_in_id);
  EXPECT_EQ(written_calls(format.calls, std::array{kOne, kTwo}), written_calls(rendered.calls, std::array{kOne, kTwo}));
}

TEST(Dialogue, ThinkingIsSwitchedOff) {
  const Vocabulary vocabulary = test::dialogue_vocabulary();
  const std::string own = source_of("hermes"), none =
                                                   "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                                                   "<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n";
  for (const std::string& source : {own, none}) {
    const auto chat = make_chat_template(vocabulary, {.source = source});
    FormatCache cache;
    RequestOptions options;
    options.messages = {kQuestion};
    options.thinking = Thinking::kOff;
    const auto conversation = write_conversation(**chat, vocabulary, cache, options);
    ASSERT_TRUE(conversation.ok());
    EXPECT_TRUE(trimmed(conversation->prompt.text()).ends_with("</think>")) << conversation->prompt.text();
    EXPECT_EQ(read(*make_answer_form(conversation->rules), "Hello").content, "Hello");
  }
}

TEST(Dialogue, ToolsThatCannotBeReadAreNamed) {
  for (const char* tools :
       {"{}", "[5]", R"([{"type":"web"}])", R"([{"type":"function"}])", R"([{"type":"function","function":{}}])",
        R"([{"type":"function","function":{"name":"a b"}}])",
        R"([{"type":"function","function":{"name":"a","parameters":5}}])",
        R"([{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}])"}) {
    const auto read = read_tools(tools);
    ASSERT_FALSE(read.ok()) << tools;
    EXPECT_EQ(read.status().settings().front(), "tools");
  }
}

TEST(Dialogue, LiteralsAreReadAsTheirNotationsSay) {
  EXPECT_EQ(spaced_json(*parse_python_arguments(R"(a='it\'s', b=[1, True, None], c={"k": (1.5, "\u00e9")})")),
            R"({"a": "it's", "b": [1, true, null], "c": {"k": [1.5, "é"]}})");
  EXPECT_EQ(*parse_python_arguments(R"(a='\x0c\xe9\U0001f600', b='\xg \U00110000 \ud83d')"),
            nlohmann::ordered_json({{"a", "\f\u00e9\U0001F600"}, {"b", R"(\xg \U00110000 \ud83d)"}}));
  EXPECT_FALSE(parse_python_arguments("a=1, 2").has_value());
  EXPECT_FALSE(parse_python_arguments("a=[1").has_value());
  EXPECT_EQ(spaced_json(*parse_gemma_literal(R"({a:<|"|>x } "y"<|"|>,b:[1,true],c:{d:null}})")),
            R"({"a": "x } \"y\"", "b": [1, true], "c": {"d": null}})");
  EXPECT_FALSE(parse_value(std::string(100'000, '[')).has_value());
  EXPECT_FALSE(parse_gemma_literal(std::string(100'000, '[')).has_value());
}

// The time to read is linear: a text of one megabyte in pieces of four bytes takes less than a few seconds.
TEST(Dialogue, LongAnswersTakeLinearTime) {
  for (const char* name : {"hermes", "qwen3-coder", "gemma-4", "gpt-oss"}) {
    const test::Dialogue dialogue(source_of(name));
    const ToolCall call = {"abcdef123", "get_weather", nlohmann::json({{"city", std::string(1 << 20, 'x')}}).dump()};
    const std::string text = *dialogue.generated(kQuestion, calling({call}));
    EXPECT_EQ(answer_of(pieces_of(*dialogue.form(), text, 4)).calls.size(), 1u) << name;
    EXPECT_EQ(answer_of(pieces_of(*dialogue.form(), std::string(1 << 20, '<'), 4)).calls.size(), 0u) << name;
  }
}

}  // namespace
}  // namespace kvasir
