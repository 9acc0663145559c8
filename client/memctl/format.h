// client/memctl/format.h: numbers, ages and texts as a person reads them, and aligned tables. Std only; pure functions.
#ifndef GPUMEM_CLIENT_MEMCTL_FORMAT_H_
#define GPUMEM_CLIENT_MEMCTL_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpumem::memctl {

// "0 B", "512 B", "256 MiB", "1.5 GiB": the largest binary unit that is not above the value, at most one decimal,
// rounded down so that no number looks larger than it is.
std::string HumanBytes(std::uint64_t bytes);

// "12s", "3m12s", "2h05m", "4d07h"; "0s" for what is not positive (clocks of two processes may differ a little).
std::string Age(std::int64_t seconds);

// `text` as a terminal may show it: control characters, bytes that are no UTF-8 and characters that reorder text
// (U+202A..E, U+2066..9) are written as \xNN or \u{NNNN}, and a backslash as \\. Nothing a peer chose can act on the
// terminal or break a row.
std::string Printable(std::string_view text);

// Columns two spaces apart, as wide as their widest cell (in characters, not bytes), without trailing spaces.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;   // numbers
    bool if_any = false;  // left out when no row has anything there
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell for each column. Cells are made printable here; "" is shown as "-".
  void Row(std::vector<std::string> cells);
  // Header and rows, each line ended by '\n'; "(none)" under the header when there are no rows.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gpumem::memctl

#endif  // GPUMEM_CLIENT_MEMCTL_FORMAT_H_
