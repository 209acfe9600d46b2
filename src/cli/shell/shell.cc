// kvasir completion and kvasir man: files that are installed beside the program.
#include "cli/shell/shell.h"

#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <span>

#include "base/mapped_file.h"
#include "base/nearest.h"
#include "base/status.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

struct ManOptions {
  std::vector<std::string> command;
  std::string folder;
};

Status write_pages(const std::vector<ManPage>& pages, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return invalid_argument("cannot create the folder '{}': {}", folder, error.message());
  for (const ManPage& page : pages)
    KVASIR_RETURN_IF_ERROR(write_file(folder + "/" + page.name + ".1", std::as_bytes(std::span(page.text))));
  return {};
}

Status man(const CLI::App& program, const ManOptions& options) {
  const std::vector<ManPage> pages = man_pages(program);
  if (!options.folder.empty()) return write_pages(pages, options.folder);
  std::string name = program.get_name();
  for (const std::string& word : options.command) name += "-" + word;
  std::vector<std::string_view> names;
  for (const ManPage& page : pages) {
    if (page.name == name) return print(page.text);
    names.push_back(page.name);
  }
  return invalid_argument("there is no page '{}'{}", name, did_you_mean(name, names));
}

}  // namespace

void add_shell(CLI::App& program, Outcome& outcome) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = program.add_subcommand("completion", "The script that completes kvasir in a shell");
  completion->add_option("shell", *shell, "bash, zsh or fish")->required();
  completion->group("");
  completion->callback([&program, shell, &outcome] {
    const Result<std::string> script = completion_script(program, *shell);
    outcome.status = script.ok() ? print(*script) : script.status();
  });

  auto options = std::make_shared<ManOptions>();
  CLI::App* page = program.add_subcommand("man", "The manual page of kvasir or of one of its commands");
  page->add_option("command", options->command, "The command; without it, the program's page");
  page->add_option("--all", options->folder, "Write all pages into this folder instead")->type_name("FOLDER");
  page->group("");
  page->callback([&program, options, &outcome] { outcome.status = man(program, *options); });
}

}  // namespace kvasir::cli
