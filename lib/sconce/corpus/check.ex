defmodule Sconce.Corpus.Check do
  @moduledoc false
  # Compares the games of a corpus with their digests.

  alias Sconce.Corpus.{Catalogue, Progress}
  alias Sconce.{Error, Native, Options}
  alias Sconce.Native.Call

  @doc "Reads every byte of the corpus in a folder."
  @spec run(Path.t(), keyword) :: {:ok, map} | {:error, Error.t()}
  def run(dir, opts) do
    [progress: progress] = Options.validate!(opts, Catalogue.schema(:verify))
    dir = dir |> Options.path!() |> Path.expand()
    start = &Native.corpus_verify(&1, dir)

    with {:ok, found} <- Call.in_background(start, Progress.checked(progress)) do
      {damaged, found} = Map.pop(found, :damaged)
      if damaged == [], do: {:ok, found}, else: {:error, damaged(dir, found, damaged)}
    end
  end

  defp damaged(dir, found, damaged) do
    [%{reason: first} | more] = damaged
    others = if more == [], do: "", else: ", and #{length(more)} more"
    reason = "#{length(damaged)} of #{found.games} games are damaged: #{first}#{others}"
    mend = "import their sources again"
    details = %{what: dir, reason: reason, damaged: damaged, mend: mend}
    %Error{kind: :corrupt, op: :verify, details: details}
  end
end
