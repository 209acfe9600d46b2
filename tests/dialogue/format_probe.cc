// Tells how templates write answers, and whether calls survive a round trip: format_probe FILE...
// Prints one line of JSON for each template.
#include <fstream>
#include <iostream>
#include <iterator>

#include "dialogue/conversation.h"
#include "dialogue/round_trip.h"

namespace {

using namespace kvasir;
using Json = nlohmann::ordered_json;

Message call(std::vector<ToolCall> calls, std::string content = "", std::string thoughts = "") {
  Message message = {"assistant", std::move(content)};
  message.reasoning = std::move(thoughts);
  message.tool_calls = std::move(calls);
  return message;
}

std::string trip(const test::Dialogue& dialogue, const Message& answer) {
  const Message question = {"user", "What is the weather?"};
  const auto written = [&](const Message& message) {
    return dialogue.generated(question, written_out({message}, "", dialogue.format, false).front());
  };
  const auto text = written(answer);
  if (!text) return "refused";
  const auto form = dialogue.form();
  Answer whole = test::answer_of(test::pieces_of(*form, *text, text->size() + 1));
  for (std::size_t cut = 0; cut <= text->size(); ++cut)
    if (test::shown(test::answer_of(test::pieces_of(*form, *text, 0, cut))) != test::shown(whole))
      return "differs where cut at " + std::to_string(cut) + ": " + *text;
  if (test::shown(test::answer_of(test::pieces_of(*form, *text, 1))) != test::shown(whole)) return "differs by bytes";
  if (whole.calls.size() != answer.tool_calls.size()) return "reads " + test::shown(whole) + " from " + *text;
  Message again = call(whole.calls, whole.content, whole.reasoning);
  for (std::size_t i = 0; i < again.tool_calls.size(); ++i) again.tool_calls[i].id = answer.tool_calls[i].id;
  if (written(again) != text) return "written again: " + written(again).value_or("-") + " not " + *text;
  return "ok";
}

}  // namespace

int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    const test::Dialogue dialogue{std::string(std::istreambuf_iterator<char>(file), {})};
    Json line = {{"file", std::string(paths[i]).substr(std::string(paths[i]).rfind('/') + 1)}};
    if (dialogue.chat == nullptr) {
      line["failure"] = true;
    } else {
      const AnswerFormat& format = dialogue.format;
      const CallFormat& calls = format.calls;
      line["shape"] = static_cast<int>(calls.shape);
      line["marks"] = {calls.section_open, calls.open, calls.close, calls.between, calls.section_close};
      if (calls.shape == CallFormat::Shape::kObject)
        line["keys"] = {calls.wrapper, calls.name_key, calls.arguments_key, calls.id_key};
      if (calls.shape == CallFormat::Shape::kNamed) line["after_name"] = calls.after_name;
      if (calls.shape == CallFormat::Shape::kTagged)
        line["tags"] = {calls.after_name, calls.key_open, calls.string_open, calls.other_open, calls.value_close};
      line["single"] = calls.single;
      line["thoughts"] = {format.thoughts.open, format.thoughts.close};
      line["writes"] = {format.writes_tools, format.writes_calls, format.writes_results, format.channels,
                        format.short_ids};
      const ToolCall one = {"abcdef123", "get_weather", R"({"city": "Zürich \"x\" <b>", "days": 3, "exact": true})"};
      const ToolCall two = {"abcdef124", "get_weather_map", R"({"code": "a\n  b\n", "points": [1.5, -2]})"};
      const ToolCall bare = {"abcdef125", "get_weather_map", "{}"};
      line["trip"] = {trip(dialogue, call({one})), trip(dialogue, call({one, two})), trip(dialogue, call({bare})),
                      trip(dialogue, call({one}, "Let me look.")), trip(dialogue, call({one}, "", "I think so."))};
    }
    std::cout << line.dump() << "\n";
  }
}
