# Copies the files of Sconce's package to a folder, as Hex chooses them: mix run --no-start tools/package/lay_out.exs DIR
[dir] = System.argv()
package = Mix.Project.config()[:package]
{listed, 0} = System.cmd("git", ["ls-files", "--" | package[:files]])

for file <- String.split(listed, "\n", trim: true),
    not Enum.any?(package[:exclude_patterns], &(file =~ &1)) do
  File.mkdir_p!(Path.join(dir, Path.dirname(file)))
  File.cp!(file, Path.join(dir, file))
end
