// Any text as a task's definition and as the items of its file: what is read makes questions, or an error of one line.
//
// The definition ends at the first empty line; the items follow.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tasks/item_file.h"
#include "tasks/task.h"

namespace {

constexpr std::size_t kMostItems = 4;

void check_error(const kvasir::Status& status) {
  KVASIR_CHECK(!status.ok() && !status.message().empty());
  KVASIR_CHECK(status.message().find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(text.find("\n\n"), text.size());
  const std::string_view items = text.substr(std::min(end + 2, text.size()));
  Result<EvalTask> task = parse_task(text.substr(0, end));
  if (!task.ok()) {
    check_error(task.status());
    task = parse_task(R"({"prompt": "{{input}}", "references": "outputs", "metrics": ["exact_match"]})");
  }
  for (const char* name : {"a.jsonl", "a.json", "a.csv"}) {
    const Result<ItemFile> file = ItemFile::parse(items, name, task->columns);
    if (!file.ok()) {
      check_error(file.status());
      continue;
    }
    KVASIR_CHECK(file->size() > 0);
    const std::size_t count = std::min(file->size(), kMostItems);
    for (std::size_t i = 0; i < count; ++i) {
      const Result<TaskItem> item = make_item(*task, file->item(i), i, {file->item(0)}, "a");
      if (!item.ok()) {
        check_error(item.status());
        continue;
      }
      KVASIR_CHECK(!item->questions.empty());
      for (const Question& question : item->questions)
        KVASIR_CHECK(question.choices.empty() || question.answer < question.choices.size());
    }
  }
  return 0;
}
