// Reports: one self-contained HTML file of text, tables, charts and coloured text, which any browser opens without a
// network.
//
// A caller fills a Report and writes it. The file contains the data as JSON, the page's script and style (web/report)
// and, if there is a chart, the plotting library.
//   - All strings are plain text and are never interpreted as HTML; bytes that are not UTF-8 show as U+FFFD.
//   - A value that is not finite is a gap.
//   - Figures and sections keep their order.
//   - A title names a figure and the CSV file that a reader can save of it. A note below it says in a sentence or two
//     what is shown and how to read it. Both may be empty.
//   - Numbers are stored with five significant digits or four decimals, whichever keeps more; integers are exact. Heat
//     maps and coloured text store 24 bits per value: a relative error of at most 2^-16.
// Thread-safety: plain values; the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::report {

// Text between figures. A blank line begins a new paragraph.
struct Paragraph {
  std::string text;
};

// y over x, joined in the order given. REQUIRES: x and y of one length.
struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

// On a logarithmic axis, values at or below zero are gaps. Made for up to some 20 series of some 10,000 points each.
struct LineChart {
  std::string title;
  std::string note;
  std::string x_label;
  std::string y_label;
  bool x_log = false;
  bool y_log = false;
  std::vector<Series> series;
};

// REQUIRES: one value per category.
struct BarSeries {
  std::string name;
  std::vector<double> values;
};

// Bars side by side for each category; horizontal if the category names do not fit below vertical bars.
struct BarChart {
  std::string title;
  std::string note;
  std::string category_label;
  std::string value_label;
  bool log = false;  // the axis of values
  std::vector<std::string> categories;
  std::vector<BarSeries> series;
};

enum class ColourScale {
  kLinear,
  kLog,        // values at or below zero take the lowest colour; spans at most six decades unless `low` says otherwise
  kDiverging,  // symmetric around zero
};

// Labels of a matrix along one axis: names, or numbers when `names` is empty. Cell i then covers the positions
// [first + i * step, first + (i + 1) * step): a matrix of 8,192 tokens reduced by 4 has step 4.
struct HeatMapAxis {
  std::string label;
  std::vector<std::string> names = {};  // empty, or one per row (column)
  std::int64_t first = 0;
  std::int64_t step = 1;  // REQUIRES: at least 1
};

// Most cells of a heat map along one side.
inline constexpr std::int64_t kMostHeatMapCells = 2048;

// Row 0 is at the top, column 0 at the left. At most 2048 x 2048 cells: the caller reduces larger matrices, since only
// the caller knows whether to take a mean or a maximum.
struct HeatMap {
  std::string title;
  std::string note;
  HeatMapAxis x;
  HeatMapAxis y;
  std::string value_label;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<float> values;  // [rows, columns], row-major; NaN: an empty cell
  ColourScale scale = ColourScale::kLinear;
  // Ends of the colour scale; values beyond them take the end's colour. Default: the lowest and highest value.
  // REQUIRES: low < high; with kLog, both above zero.
  std::optional<double> low;
  std::optional<double> high;
};

enum class Align { kLeft, kRight };

struct Table {
  std::string title;
  std::string note;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // REQUIRES: each as long as the header
  std::vector<Align> align = {};               // per column; columns beyond its end: right if all cells are numbers
};

struct Token {
  std::string text;          // as it stands in the text, with its spaces and line ends
  std::string tooltip = {};  // shown beside the value, for example "position 12, key norm 3.4"
};

// REQUIRES: one value per token: 0 to 1, or NaN for a token that is not kept.
struct TokenLayer {
  std::string name;  // "layer 0", "all layers"
  std::vector<float> values;
};

// A text whose tokens are coloured by a value. With several layers the reader chooses whose values are shown, initially
// the first's.
struct TokenText {
  std::string title;
  std::string note;
  std::string value_label;      // what the colour means: "age", "share of layers that keep it"
  std::string low_label = "0";  // meaning of 0 and 1: "oldest", "newest"
  std::string high_label = "1";
  std::string missing_label = "not kept";  // what NaN means
  std::string layer_label = "Layer";       // label of the layer menu
  std::vector<Token> tokens;
  std::vector<TokenLayer> layers;  // REQUIRES: at least one
};

using Block = std::variant<Paragraph, LineChart, BarChart, HeatMap, Table, TokenText>;

struct Section {
  std::string title;
  std::string text = {};  // as a Paragraph, below the title
  std::vector<Block> blocks = {};
};

struct Report {
  std::string title;
  std::string subtitle;
  std::vector<Section> sections;
};

// Returns the page. Errors: kInvalidArgument where a REQUIRES above does not hold, naming the section and the figure.
Result<std::string> render_report(const Report& report);

// Renders the report and writes it to `path`, whole or not at all (see write_file of base). Errors: those of
// render_report and write_file.
Status write_report(const Report& report, const std::string& path);

}  // namespace kvasir::report
