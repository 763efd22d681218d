"""What every store on a SQL database does alike: the writes and reads of the contract, by named statements."""
