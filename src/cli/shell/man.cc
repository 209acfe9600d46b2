#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "cli/shell/shell.h"
#include "kvasir/version.h"

namespace kvasir::cli {
namespace {

// Escapes a text for roff; a line may begin with any character.
std::string roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    begins = c == '\n';
  }
  return out;
}

// "\-m, \-\-model FILE"
std::string option_line(const CLI::Option& option) {
  std::string names;
  const auto add = [&](const std::string& name) {
    names += (names.empty() ? "" : ", ") + ("\\fB" + roff(name) + "\\fR");
  };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  if (option.get_items_expected_max() > 0) names += " \\fI" + roff(option.get_type_name()) + "\\fR";
  return names;
}

void add_options(const CLI::App& app, std::string& out) {
  for (const std::string& group : app.get_groups()) {
    std::string lines;
    for (const CLI::Option* option : shown_options(app)) {
      if (option->get_group() != group || !option->nonpositional()) continue;
      std::string text = roff(option->get_description());
      if (!option->get_default_str().empty()) text += fmt::format(" (default: {})", roff(option->get_default_str()));
      if (!option->get_envname().empty()) text += fmt::format(". Variable: \\fB{}\\fR", option->get_envname());
      lines += fmt::format(".TP\n{}\n{}\n", option_line(*option), text);
    }
    if (!lines.empty()) out += fmt::format(".SS {}\n{}", roff(group), lines);
  }
}

constexpr std::string_view kProgramPage = R"(.SH ENVIRONMENT
Defaults of options; the command line wins.
.TP
\fBKVASIR_MODEL\fR
GGUF file of the model (\fB\-\-model\fR)
.TP
\fBKVASIR_THREADS\fR
Threads (\fB\-\-threads\fR)
.TP
\fBKVASIR_KV\fR
Retention policy of \fBrun\fR and \fBplan\fR (\fB\-\-kv\fR)
.TP
\fBKVASIR_KV_MEMORY\fR
Bound of all KV memory (\fB\-\-kv\-memory\fR)
.SH EXIT STATUS
.TP
0
done
.TP
1
a run failed or was stopped
.TP
2
the command line or an input was wrong
)";

void add_pages(const CLI::App& app, const std::string& path, std::vector<ManPage>& pages) {
  ManPage page{path, {}};
  std::ranges::replace(page.name, ' ', '-');
  std::string title = page.name;
  std::ranges::transform(title, title.begin(), [](char c) { return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c; });
  std::string& out = page.text;
  out = fmt::format(".TH {} 1 \"\" \"kvasir {}\" \"User Commands\"\n", title, kVersion);
  out += fmt::format(".SH NAME\n{} \\- {}\n", roff(page.name), roff(app.get_description()));
  const std::vector<const CLI::App*> below = shown_commands(app);
  std::string arguments;
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) arguments += fmt::format(" [\\fI{}\\fR]", roff(option->get_name(true)));
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR{} [\\fIoptions\\fR]{}\n", roff(path),
                     below.empty() ? "" : " \\fIcommand\\fR", arguments);
  if (!below.empty()) {
    out += ".SH COMMANDS\n";
    for (const CLI::App* command : below)
      out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(command->get_name()), roff(command->get_description()));
  }
  out += ".SH OPTIONS\n";
  add_options(app, out);
  if (const std::string footer = app.get_footer(); !footer.empty())
    out += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", roff(footer.substr(footer.find('\n') + 1)));
  if (app.get_parent() == nullptr) out += kProgramPage;
  std::string others;
  for (const CLI::App* command : below)
    others += fmt::format("{}\\fB{}\\fR(1)", others.empty() ? "" : ", ", roff(page.name + "-" + command->get_name()));
  if (app.get_parent() != nullptr) others = "\\fBkvasir\\fR(1)" + (others.empty() ? "" : ", " + others);
  out += fmt::format(".SH SEE ALSO\n{}\n", others);
  pages.push_back(std::move(page));
  for (const CLI::App* command : below) add_pages(*command, path + " " + command->get_name(), pages);
}

}  // namespace

std::vector<ManPage> man_pages(const CLI::App& program) {
  std::vector<ManPage> pages;
  add_pages(program, program.get_name(), pages);
  return pages;
}

}  // namespace kvasir::cli
