/-! Byte offsets of the word `theorem` in every theorem that Lean's own parser sees in a file. -/

open Lean Parser

partial def theorems (stx : Syntax) (found : Array Nat) : Array Nat :=
  match stx with
  | .node _ kind args =>
    -- What a quotation holds is not declared.
    if kind == ``Lean.Parser.Term.quot || kind == ``Lean.Parser.Command.quot
        || kind == ``Lean.Parser.Term.dynamicQuot then
      found
    else if kind == ``Lean.Parser.Command.theorem then
      match stx.getPos? with
      | some position => found.push position.byteIdx
      | none => found
    else
      let rec each (i : Nat) (found : Array Nat) : Array Nat :=
        if h : i < args.size then each (i + 1) (theorems args[i] found) else found
      each 0 found
  | _ => found

partial def printAll (found : Array Nat) (i : Nat) : IO Unit :=
  if h : i < found.size then do
    IO.println (String.append "@theorem " (Nat.repr found[i]))
    printAll found (i + 1)
  else
    pure ()

partial def eachCommand (input : InputContext) (context : ParserModuleContext)
    (state : ModuleParserState) : IO Unit := do
  let (command, state, _) := parseCommand input context state {}
  if isTerminalCommand command then
    pure ()
  else
    printAll (theorems command #[]) 0
    eachCommand input context state

def positions (env : Environment) (path : String) : IO Unit := do
  let text ← IO.FS.readFile path
  let input : InputContext :=
    { inputString := text, fileName := path, fileMap := FileMap.ofString text }
  IO.println (String.append "@file " path)
  eachCommand input { env := env, options := {} } {}

syntax (name := printPositions) "print_positions " str : command

@[command_elab printPositions]
def elabPrintPositions : Elab.Command.CommandElab := fun stx _ state => do
  match stx[1].isStrLit? with
  | some path =>
    let now ← ST.Ref.get state
    let _ ← EIO.toBaseIO (positions now.env path)
    pure ()
  | none => pure ()
