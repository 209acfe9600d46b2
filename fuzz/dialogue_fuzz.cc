// Any text as an answer in the format of a template of tests/dialogue/templates: it is read alike however it is cut, a
// call names a tool and has a JSON object for its arguments, and where there are no marks nothing is lost.
//
// The input: one byte for the template, one for the size of the pieces, one for how the prompt ends; then the answer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "dialogue/round_trip.h"
#include "text/utf8.h"

namespace {

using namespace kvasir;

const std::vector<std::unique_ptr<test::Dialogue>>& dialogues() {
  static const auto made = [] {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(KVASIR_DIALOGUE_TEMPLATES))
      if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
    std::ranges::sort(paths);
    std::vector<std::unique_ptr<test::Dialogue>> all;
    for (const auto& path : paths) {
      std::ifstream file(path, std::ios::binary);
      all.push_back(std::make_unique<test::Dialogue>(std::string(std::istreambuf_iterator<char>(file), {})));
    }
    KVASIR_CHECK(all.size() > 10);
    return all;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const test::Dialogue& dialogue = *dialogues()[data[0] % dialogues().size()];
  const std::string_view text(reinterpret_cast<const char*>(data + 3), size - 3);
  AnswerRules rules = {dialogue.format, *read_tools(test::kTools), (data[2] & 1) != 0};
  if ((data[2] & 2) != 0) rules.most_calls = 1;
  const auto form = make_answer_form(std::make_shared<const AnswerRules>(rules));
  const auto pieces = test::pieces_of(*form, text, text.size());
  Answer whole = test::answer_of(pieces);
  const Answer parts = test::answer_of(test::pieces_of(*form, text, 1 + data[1] % 16));
  if (find_invalid_utf8(text)) return 0;  // generated text is valid
  KVASIR_CHECK(test::shown(parts) == test::shown(whole));
  const auto breaks = [](const AnswerPiece& piece) { return piece.kind == AnswerPiece::Kind::kCallBreaks; };
  if (std::any_of(pieces.begin(), pieces.end(), breaks)) whole.calls.pop_back();  // its arguments are a start of JSON
  for (const ToolCall& call : whole.calls) {
    KVASIR_CHECK(rules.find_tool(call.name) != nullptr);
    KVASIR_CHECK(nlohmann::json::parse(call.arguments, nullptr, false).is_object());
  }
  if (text.find_first_of("<[{") == std::string_view::npos && !rules.starts_in_thoughts)
    KVASIR_CHECK(whole.content == text && whole.reasoning.empty());
  return 0;
}
