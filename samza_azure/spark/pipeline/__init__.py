"""The pipeline that somebody wrote: loaded, analysed stage by stage, and refused where its rows would be wrong."""
