defmodule Sconce.Corpus.Progress do
  @moduledoc false
  # The option `:progress` as a function: of the user, a line in a terminal, or nothing.

  alias Sconce.Figures

  @type option :: (map -> term) | :auto | false

  @doc "The function that an import calls after each file."
  @spec imported(option) :: (map -> term)
  def imported(option), do: teller(option, &imported_line/1)

  @doc "The function that a check calls after each game."
  @spec checked(option) :: (map -> term)
  def checked(option), do: teller(option, &checked_line/1)

  defp teller(:auto, line), do: if(IO.ANSI.enabled?(), do: line, else: teller(false, line))
  defp teller(false, _line), do: &Function.identity/1
  defp teller(fun, _line), do: fun

  defp imported_line(progress) do
    skipped = if progress.skipped > 0, do: ", #{progress.skipped} skipped", else: ""
    rewrite(progress, "replays, #{Figures.grouped(progress.frames)} frames#{skipped}")
  end

  defp checked_line(checked) do
    damaged = if checked.damaged > 0, do: ", #{checked.damaged} damaged", else: ""
    rewrite(checked, "games checked, #{Figures.size(checked.bytes)}#{damaged}")
  end

  defp rewrite(%{done: done, total: total}, text) do
    ending = if done == total, do: "\n", else: ""
    IO.write("\r\e[K#{done}/#{total} #{text}#{ending}")
  end
end
